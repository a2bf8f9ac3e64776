// Runs every kernel of tests/native/twin_kernels under every strategy: a program of its own, so that the
// sanitizers also look for leaks. Prints how many runs there were, and how many of them ended in a violation.
#include <twin/capi.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <twin/kernel.hpp>

namespace {

struct Args {
  uint64_t in, out, words, peer_words, peer_out, rank;
};

int run(const std::string& kernel, const char* strategy, int seed) {
  const std::string params = R"({"ranks": 2, "aivs": 2, "strategy": ")" + std::string(strategy) +
                             R"(", "seed": )" + std::to_string(seed) + "}";
  epsim_machine* machine = epsim_machine_create(params.c_str());
  Args args[2];
  int32_t numbers[1024];
  for (int i = 0; i < 1024; ++i) numbers[i] = i;
  for (int rank = 0; rank < 2; ++rank) {
    args[rank].in = epsim_alloc(machine, rank, 4096, "in", 0);
    args[rank].out = epsim_alloc(machine, rank, 4096, "out", 0);
    args[rank].words = epsim_alloc(machine, rank, 4096, "words", 1);
    args[rank].rank = static_cast<uint64_t>(rank);
    epsim_write(machine, args[rank].in, numbers, sizeof(numbers));
  }
  for (int rank = 0; rank < 2; ++rank) {
    args[rank].peer_words = args[1 - rank].words;
    args[rank].peer_out = args[1 - rank].out;
    const uint64_t address = epsim_alloc(machine, rank, sizeof(Args), "args", 0);
    epsim_write(machine, address, &args[rank], sizeof(Args));
    epsim_enqueue(machine, rank, kernel.c_str(), address, 2);
  }
  const int result = epsim_run(machine);
  if (result < 0) std::printf("misuse: %s\n", epsim_last_error());
  epsim_machine_destroy(machine);
  return result;
}

}  // namespace

int main() {
  int num_runs = 0;
  int num_violations = 0;
  for (const std::string& kernel : epsim::twin::kernel_names()) {
    for (const char* strategy : {"random", "pct", "delay_pipe", "late", "inorder"}) {
      for (int seed = 0; seed < 2; ++seed) {
        const int result = run(kernel, strategy, seed);
        if (result < 0) return 1;
        num_violations += result;
        ++num_runs;
      }
    }
  }
  std::printf("%d runs, %d violations\n", num_runs, num_violations);
  return 0;
}
