#include <algorithm>
#include <twin/core.hpp>
#include <twin/thread.hpp>

namespace epsim::twin {

std::uint32_t newest_version(const Region& region, std::uint64_t offset, std::uint64_t num_bytes) {
  std::uint32_t newest = 0;
  for (std::uint64_t i = offset / kCellBytes; i <= (offset + num_bytes - 1) / kCellBytes; ++i) {
    newest = std::max(newest, region.cell(i).version);
  }
  return newest;
}

bool Poll::repeats(Region& region, std::uint64_t offset, std::uint32_t num_bytes) {
  const std::uint32_t version = newest_version(region, offset, num_bytes);
  for (std::uint32_t i = 0; i < num_words_; ++i) {
    const Word& word = words_[i];
    if (word.region == &region && word.offset == offset && word.num_bytes == num_bytes) {
      if (word.version == version) {
        ++num_repeats_;
        return true;
      }
      reset();
      break;
    }
  }
  if (num_words_ == words_.size()) {
    reset();  // so many words are a computation, not a poll
  }
  words_[num_words_++] = {&region, offset, num_bytes, version};
  num_repeats_ = 0;
  return false;
}

bool Poll::is_idle(std::uint32_t rounds) const {
  if (num_words_ == 0 || num_repeats_ < rounds * num_words_) {
    return false;
  }
  return std::all_of(words_.begin(), words_.begin() + num_words_, [](const Word& word) {
    return newest_version(*word.region, word.offset, word.num_bytes) == word.version;
  });
}

void ThreadClock::begin(const Knowledge& start) {
  knowledge = start;
  for (std::size_t scope = 0; scope < kNumScopes; ++scope) {
    fenced_at[scope] = 0;
    is_clean[scope] = start.visible[scope] == start.known;
  }
}

void ThreadClock::acquire(const ClockRef& released) { learn({released, {released, released}}); }

void ThreadClock::learn(const Knowledge& other) {
  knowledge = join(knowledge, other);
  for (std::size_t scope = 0; scope < kNumScopes; ++scope) {
    is_clean[scope] = is_clean[scope] && knowledge.visible[scope] == knowledge.known;
  }
}

void ThreadClock::fence(Scope scope) {
  const std::uint32_t last = (*now)++;
  // What everybody sees, this core sees.
  for (std::size_t i = scope; i < kNumScopes; ++i) {
    knowledge.visible[i] = knowledge.known;
    fenced_at[i] = last;
    is_clean[i] = true;
  }
}

ClockRef ThreadClock::released(Scope scope) const {
  const ClockRef& visible = knowledge.visible[scope];
  if (fenced_at[scope] == 0) {
    return visible;
  }
  return is_single ? raised(visible, agent, fenced_at[scope])
                   : with_extra(visible, {agent, tid, fenced_at[scope]});
}

Knowledge ThreadClock::snapshot() {
  Knowledge result{raised(knowledge.known, agent, *now), {released(kScopeGm), released(kScopeCore)}};
  ++*now;
  return result;
}

Site Thread::site(Where here) const {
  Site result{here, core->rank(), core->idx(), is_lane ? PIPE_V : PIPE_S, -1};
  if (is_lane) {
    result.lane = static_cast<std::int16_t>(clock.tid);
  }
  return result;
}

}  // namespace epsim::twin
