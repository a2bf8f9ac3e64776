// The flat JSON object of epsim_machine_create.
#include <cctype>
#include <cstdlib>
#include <stdexcept>
#include <twin/machine.hpp>

namespace epsim::twin {

namespace {

constexpr const char* kKnown[] = {"ranks",    "aivs",      "seed",  "strategy", "pct_depth", "pct_steps",
                                  "ub_bytes", "max_steps", "trace", "sq_depth", "cq_depth"};

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(char c) {
    if (peek() != c) {
      throw std::invalid_argument("parameters must be one flat JSON object of strings and integers");
    }
    ++at_;
  }
  std::string string() {
    expect('"');
    const std::size_t end = text_.find('"', at_);
    if (end == std::string::npos) {
      throw std::invalid_argument("parameters: a string does not end");
    }
    const std::string result = text_.substr(at_, end - at_);
    at_ = end + 1;
    return result;
  }
  std::string value() {
    if (peek() == '"') {
      return string();
    }
    std::string result;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '-')) {
      result += text_[at_++];
    }
    return result == "true" ? "1" : result == "false" ? "0" : result;
  }

 private:
  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace

Parameters Parameters::parse(const std::string& json) {
  Parameters result;
  Reader reader(json);
  reader.expect('{');
  while (reader.peek() != '}') {
    const std::string name = reader.string();
    bool is_known = false;
    for (const char* known : kKnown) {
      is_known = is_known || name == known;
    }
    if (!is_known) {
      throw std::invalid_argument("unknown parameter \"" + name + "\"");
    }
    reader.expect(':');
    result.values[name] = reader.value();
    if (reader.peek() == ',') {
      reader.expect(',');
    } else if (reader.peek() != '}') {
      reader.expect('}');
    }
  }
  return result;
}

std::int64_t Parameters::integer(const std::string& name, std::int64_t fallback) const {
  const auto found = values.find(name);
  if (found == values.end()) {
    return fallback;
  }
  char* end = nullptr;
  // Seeds may use all 64 bits.
  const bool is_negative = !found->second.empty() && found->second.front() == '-';
  const std::int64_t value = is_negative
                                 ? std::strtoll(found->second.c_str(), &end, 10)
                                 : static_cast<std::int64_t>(std::strtoull(found->second.c_str(), &end, 10));
  if (found->second.empty() || *end != '\0') {
    throw std::invalid_argument(name + " must be an integer, not \"" + found->second + "\"");
  }
  return value;
}

std::string Parameters::text(const std::string& name, const std::string& fallback) const {
  const auto found = values.find(name);
  return found == values.end() ? fallback : found->second;
}

}  // namespace epsim::twin
