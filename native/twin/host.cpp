// Streams: what the host of a rank has queued, step after step.
#include <cstring>
#include <twin/machine.hpp>

namespace epsim::twin {

void HostStream::wake() { machine->scheduler().set_enabled(actor, true); }

void HostStream::step() {
  StreamStep& head = steps.front();
  if (head.launch) {
    Launch& launch = *head.launch;
    is_running = true;
    machine->scheduler().set_enabled(actor, false);
    launch.num_running = launch.num_blocks;
    launch.flags = std::make_unique<CrossFlags>(launch.num_blocks);
    launch.ends.resize(launch.num_blocks);
    machine->operation_trace().add_named(machine->scheduler().num_steps(), "launch", rank, launch.kernel,
                                         launch.args_address, 0, launch.num_blocks);
    const Knowledge before = clock.snapshot();
    for (std::uint32_t block = 0; block < launch.num_blocks; ++block) {
      machine->core(rank, static_cast<int>(block)).start(launch, launch.body, before);
    }
    return;
  }
  if (words_are_there(head)) {
    steps.pop_front();
    poll.reset();
    machine->scheduler().set_enabled(actor, !steps.empty());
    return;
  }
  machine->scheduler().set_enabled(actor, false);
  machine->space().put_to_sleep(*this);
}

bool HostStream::words_are_there(StreamStep& step) {
  const Site site{{}, static_cast<std::int16_t>(rank), -1, PIPE_HOST, -1};
  const Span all = machine->space().gm(step.address, std::uint64_t{4} * step.num_words, site);
  poll.repeats(*all.region, all.offset, static_cast<std::uint32_t>(all.num_bytes));
  for (std::uint32_t i = 0; i < step.num_words; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, all.data() + std::uint64_t{4} * i, 4);
    if ((word & step.mask) != step.value) {
      return false;
    }
  }
  ClockRef learned;
  for (std::uint32_t i = 0; i < step.num_words; ++i) {
    const Access access{clock.stamp(), clock.knowledge.known.get(), site};
    machine->space().sync_load({all.region, all.offset + std::uint64_t{4} * i, 4}, access, true, learned);
    if (learned) {
      clock.acquire(learned);
    }
  }
  return true;
}

void HostStream::launch_ended() {
  Knowledge done = steps.front().launch->done;
  clock.learn(done);
  clock.knowledge.visible[kScopeGm] = clock.knowledge.visible[kScopeCore] = clock.knowledge.known;
  machine->operation_trace().add_named(machine->scheduler().num_steps(), "kernel_end", rank,
                                       steps.front().launch->kernel, 0, 0, 0);
  steps.pop_front();
  is_running = false;
  machine->scheduler().set_enabled(actor, !steps.empty());
}

}  // namespace epsim::twin
