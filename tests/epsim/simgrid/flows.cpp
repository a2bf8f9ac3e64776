// Start all flows of a file at time 0 on a SimGrid platform and print when each ends.
//
// Usage: flows platform.xml flows.txt [--cfg=...]. Lines of flows.txt: source host, destination host, bytes.
// Prints per flow: source, destination, bytes, start and finish in seconds, in the order of the file.
#include <simgrid/s4u.hpp>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

struct Flow {
  std::string src, dst;
  unsigned long long num_bytes = 0;
  sg::CommPtr comm;
};

int main(int argc, char** argv) {
  sg::Engine engine(&argc, argv);
  engine.load_platform(argv[1]);
  std::ifstream file(argv[2]);
  std::vector<Flow> flows;
  for (Flow flow; file >> flow.src >> flow.dst >> flow.num_bytes;) {
    flows.push_back(flow);
  }
  // One actor is enough: a communication between two hosts needs none at its ends.
  sg::Actor::create("starter", engine.get_all_hosts().front(), [&flows] {
    for (Flow& flow : flows) {
      flow.comm =
          sg::Comm::sendto_async(sg::Host::by_name(flow.src), sg::Host::by_name(flow.dst), flow.num_bytes);
    }
    for (Flow& flow : flows) {
      flow.comm->wait();
    }
  });
  engine.run();
  for (const Flow& flow : flows) {
    std::printf("%s %s %llu %.15f %.15f\n", flow.src.c_str(), flow.dst.c_str(), flow.num_bytes,
                flow.comm->get_start_time(), flow.comm->get_finish_time());
  }
}
