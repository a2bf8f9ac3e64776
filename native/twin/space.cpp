#include <algorithm>
#include <bit>
#include <cstring>
#include <twin/space.hpp>

namespace epsim::twin {

namespace {

bool overlaps(const Region* region, std::uint64_t offset, std::uint64_t num_bytes, const Span& span) {
  return region == span.region && offset < span.offset + span.num_bytes && span.offset < offset + num_bytes;
}

std::uint64_t load_bits(const Span& span) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, span.data(), span.num_bytes);
  return bits;
}

}  // namespace

void Space::read(const Span& span, void* out, const Access& access, AccessKind kind,
                 bool must_be_initialised) {
  shadow.read(*span.region, span.offset, span.num_bytes, access, kind, must_be_initialised);
  std::memcpy(out, span.data(), span.num_bytes);
}

void Space::write(const Span& span, const void* in, const Access& access, AccessKind kind) {
  const std::uint8_t flags = shadow.write(*span.region, span.offset, span.num_bytes, access, kind);
  std::memcpy(span.data(), in, span.num_bytes);
  after_write(span, flags);
}

void Space::copy(const Span& target, const Span& source, const Access& access) {
  shadow.read(*source.region, source.offset, source.num_bytes, access, AccessKind::plain, false);
  const std::uint8_t flags =
      shadow.write(*target.region, target.offset, target.num_bytes, access, AccessKind::plain);
  std::memmove(target.data(), source.data(), source.num_bytes);
  if (shadow.has_checks()) {
    shadow.copy_marks(*target.region, target.offset, *source.region, source.offset, source.num_bytes);
  }
  after_write(target, flags);
}

void Space::add_int32(const Span& target, const Span& source, const Access& access) {
  shadow.read(*source.region, source.offset, source.num_bytes, access, AccessKind::plain, true);
  // An atomic of the memory side: adds of other cores may come in between, loads and stores may not.
  shadow.read(*target.region, target.offset, target.num_bytes, access, AccessKind::sync, true);
  const ClockRef before = shadow.released(*target.region, target.offset, target.num_bytes);
  const std::uint8_t flags =
      shadow.write(*target.region, target.offset, target.num_bytes, access, AccessKind::sync);
  if (before) {
    shadow.set_released(*target.region, target.offset, target.num_bytes, before);
  }
  for (std::uint64_t at = 0; at + 4 <= source.num_bytes; at += 4) {
    std::uint32_t a = 0;
    std::uint32_t b = 0;
    std::memcpy(&a, target.data() + at, 4);
    std::memcpy(&b, source.data() + at, 4);
    a += b;
    std::memcpy(target.data() + at, &a, 4);
  }
  after_write(target, flags);
}

std::uint64_t Space::sync_load(const Span& span, const Access& access, bool must_be_initialised,
                               ClockRef& learned) {
  shadow.read(*span.region, span.offset, span.num_bytes, access, AccessKind::sync, must_be_initialised);
  if (shadow.has_checks()) {
    learned = shadow.released(*span.region, span.offset, span.num_bytes);
  }
  return load_bits(span);
}

void Space::sync_store(const Span& span, std::uint64_t bits, const Access& access, const ClockRef& released) {
  const std::uint8_t flags =
      shadow.write(*span.region, span.offset, span.num_bytes, access, AccessKind::sync);
  std::memcpy(span.data(), &bits, span.num_bytes);
  if (shadow.has_checks()) {
    shadow.set_released(*span.region, span.offset, span.num_bytes, released);
  }
  after_write(span, flags);
  if ((flags & kListened) != 0) {
    tell_listeners(span, access.site, released);
  }
}

std::uint64_t Space::atomic(const Span& span, const AtomicCall& call, const Access& access,
                            const ClockRef& released, ClockRef& learned) {
  const std::uint64_t old = sync_load(span, access, true, learned);
  // Everybody who added to the word before goes on being released by it.
  sync_store(span, atomic_result(call, old), access, learned ? join(learned, released) : released);
  return old;
}

void Space::watch(const Span& span, StoreListener listener) {
  for (std::uint64_t i = span.offset / kCellBytes; i <= (span.offset + span.num_bytes - 1) / kCellBytes;
       ++i) {
    Cell& cell = span.region->cell(i);
    cell.flags = static_cast<std::uint8_t>(cell.flags | kListened);
  }
  listeners_.emplace_back(span, std::move(listener));
}

void Space::after_write(const Span& span, std::uint8_t flags) {
  has_progress = true;
  if ((flags & kWatched) == 0) {
    return;
  }
  for (std::uint64_t i = span.offset / kCellBytes; i <= (span.offset + span.num_bytes - 1) / kCellBytes;
       ++i) {
    Cell& cell = span.region->cell(i);
    cell.flags = static_cast<std::uint8_t>(cell.flags & ~kWatched);
  }
  const auto is_hit = [&](Sleeper* sleeper) {
    for (std::uint32_t i = 0; i < sleeper->poll.num_words(); ++i) {
      const Poll::Word& word = sleeper->poll.word(i);
      if (overlaps(word.region, word.offset, word.num_bytes, span)) {
        sleeper->is_asleep = false;
        sleeper->poll.reset();
        sleeper->wake();
        return true;
      }
    }
    return false;
  };
  std::erase_if(sleepers_, is_hit);
}

void Space::tell_listeners(const Span& span, const Site& site, const ClockRef& released) {
  for (const auto& [watched, listener] : listeners_) {
    if (overlaps(watched.region, watched.offset, watched.num_bytes, span)) {
      listener({span.region->base + span.offset, static_cast<std::uint32_t>(span.num_bytes), load_bits(span),
                released ? released : no_clock(), site});
    }
  }
}

void Space::put_to_sleep(Sleeper& sleeper) {
  for (std::uint32_t i = 0; i < sleeper.poll.num_words(); ++i) {
    const Poll::Word& word = sleeper.poll.word(i);
    for (std::uint64_t c = word.offset / kCellBytes; c <= (word.offset + word.num_bytes - 1) / kCellBytes;
         ++c) {
      Cell& cell = word.region->cell(c);
      cell.flags = static_cast<std::uint8_t>(cell.flags | kWatched);
    }
  }
  sleeper.is_asleep = true;
  sleepers_.push_back(&sleeper);
}

bool Space::wake_all() {
  const std::vector<Sleeper*> woken = std::move(sleepers_);
  sleepers_.clear();
  for (Sleeper* sleeper : woken) {
    sleeper->is_asleep = false;
    sleeper->wake();
  }
  return !woken.empty();
}

std::uint64_t atomic_result(const AtomicCall& call, std::uint64_t old) {
  const std::uint64_t mask = number_bytes(call.number) == 8 ? ~std::uint64_t{0} : 0xffffffffU;
  switch (call.operation) {
    case Atomic::add:
      if (call.number == Number::f32) {
        return std::bit_cast<std::uint32_t>(std::bit_cast<float>(static_cast<std::uint32_t>(old)) +
                                            std::bit_cast<float>(static_cast<std::uint32_t>(call.value)));
      }
      return (old + call.value) & mask;
    case Atomic::exch:
      return call.value & mask;
    case Atomic::cas:
      return old == (call.compare & mask) ? call.value & mask : old;
    case Atomic::bit_or:
      return (old | call.value) & mask;
    case Atomic::max:
      break;
  }
  switch (call.number) {
    case Number::i32: {
      const auto larger = std::max(static_cast<std::int32_t>(old), static_cast<std::int32_t>(call.value));
      return static_cast<std::uint32_t>(larger);
    }
    case Number::i64:
      return static_cast<std::uint64_t>(
          std::max(static_cast<std::int64_t>(old), static_cast<std::int64_t>(call.value)));
    case Number::f32:
      return std::bit_cast<std::uint32_t>(
          std::max(std::bit_cast<float>(static_cast<std::uint32_t>(old)),
                   std::bit_cast<float>(static_cast<std::uint32_t>(call.value))));
    default:
      return std::max(old, call.value) & mask;
  }
}

}  // namespace epsim::twin
