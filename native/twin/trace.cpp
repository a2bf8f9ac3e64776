#include <twin/trace.hpp>

namespace epsim::twin {

std::string Trace::to_json_lines() const {
  std::string result;
  for (const Event& event : events_) {
    result +=
        "{\"step\": " + std::to_string(event.step) + ", \"kind\": \"" + event.kind +
        "\", \"rank\": " + std::to_string(event.site.rank) + ", \"aiv\": " + std::to_string(event.site.aiv) +
        ", \"pipe\": \"" + pipe_name(event.site.pipe) + "\", \"lane\": " + std::to_string(event.site.lane) +
        ", \"address\": " + std::to_string(event.address) +
        ", \"bytes\": " + std::to_string(event.num_bytes) + ", \"extra\": " + std::to_string(event.extra) +
        ", \"file\": " + json_string(event.site.where.file) +
        ", \"line\": " + std::to_string(event.site.where.line) + "}\n";
  }
  return result;
}

}  // namespace epsim::twin
