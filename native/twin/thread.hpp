// A thread of control in a kernel: the scalar unit of an AIV, or one lane of a VF. What it knows, and what it
// polls.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <twin/clocks.hpp>
#include <twin/engine.hpp>
#include <twin/fiber.hpp>
#include <twin/memory.hpp>

namespace epsim::twin {

class Core;

// Loads that found nothing new since the last thing that mattered.
class Poll {
 public:
  struct Word {
    Region* region;
    std::uint64_t offset;
    std::uint32_t num_bytes;
    std::uint32_t version;
  };

  // Note a load. True if it repeats one of the noted loads and the word has not changed.
  bool repeats(Region& region, std::uint64_t offset, std::uint32_t num_bytes);
  // All noted words were loaded `rounds` times again and none has changed.
  bool is_idle(std::uint32_t rounds) const;
  void reset() { num_words_ = num_repeats_ = 0; }

  std::uint32_t num_words() const { return num_words_; }
  const Word& word(std::uint32_t i) const { return words_[i]; }

 private:
  std::array<Word, 8> words_;
  std::uint32_t num_words_ = 0;
  std::uint32_t num_repeats_ = 0;
};

// The newest version among the cells of a range.
std::uint32_t newest_version(const Region& region, std::uint64_t offset, std::uint64_t num_bytes);

// What a thread knows, as an agent of its own (scalar unit) or as one of the lanes of a warp.
struct ThreadClock {
  AgentId agent = 0;
  std::uint16_t tid = 0;
  bool is_single = true;         // the only thread of its agent
  std::uint32_t* now = nullptr;  // the agent's clock
  Knowledge knowledge;           // `visible` as of the last fence, without the thread's own accesses
  // Own accesses up to this clock are fenced too.
  std::uint32_t fenced_at[kNumScopes] = {0, 0};
  // visible[scope] is all of known, and no own write came after the last fence.
  bool is_clean[kNumScopes] = {false, false};

  void begin(const Knowledge& start);
  Stamp stamp() const { return {agent, tid, *now}; }
  void wrote() { is_clean[kScopeGm] = is_clean[kScopeCore] = false; }
  // Learn what the writer of a sync word had released.
  void acquire(const ClockRef& released);
  void learn(const Knowledge& other);
  void fence(Scope scope);
  // What a store to a sync word passes on.
  ClockRef released(Scope scope) const;
  // All that the thread has done and knows, for whoever is ordered after it. Starts a new clock value.
  Knowledge snapshot();
};

// Something that sleeps until a word is written.
class Sleeper {
 public:
  virtual ~Sleeper() = default;
  virtual void wake() = 0;
  Poll poll;
  bool is_asleep = false;
};

class Thread : public Sleeper {
 public:
  Fiber fiber;
  ThreadClock clock;
  Core* core = nullptr;
  bool is_lane = false;
  Where where;          // of the call it is in
  std::string waiting;  // what it waits for, for the deadlock report; empty while it runs

  Site site(Where here) const;
  Access access(Where here) { return {clock.stamp(), clock.knowledge.known.get(), site(here)}; }
  // Let others go first, if the strategy says so.
  virtual void yield() = 0;
  // Sleep until one of the polled words is written.
  virtual void sleep() = 0;
};

}  // namespace epsim::twin
