// Doorbells of a jetty: what the kernel says is checked here, before anything of it is executed.
#include <twin/urma_jetty.hpp>

#include <utility>

namespace epsim::twin {

namespace {

std::string number_text(std::uint64_t value) { return std::to_string(value); }

}  // namespace

std::optional<Involved> Tenant::take(const Store& store) {
  const bool is_same = !last_ || (last_->site.rank == store.site.rank && last_->site.aiv == store.site.aiv);
  // A clock that covers another one is its own join with it.
  if (!is_same && !(join(store.released, last_->released) == store.released)) {
    return Involved{last_->site, "doorbell of the other AIV"};
  }
  last_ = store;
  return std::nullopt;
}

Site Jetty::own_site(const Store& store) const {
  Site site = store.site;
  site.pipe = PIPE_URMA;
  site.lane = -1;
  return site;
}

void Jetty::hear_doorbell(const Store& store) {
  if (const auto other = producer_.take(store); other && bus_.has_checks()) {
    raise(Rule::sq_two_producers, store.site,
          "another AIV has rung jetty " + number_text(plan_.jetty_idx) +
              " and nothing has handed it over since",
          {*other});
  }
  std::uint64_t packed_head = 0;
  read_published(plan_.info.sq_head_address, &packed_head, sizeof(packed_head), store,
                 Rule::doorbell_beyond_head);
  const std::uint32_t head = checked_head(store, static_cast<std::uint32_t>(packed_head));
  bus_.trace("doorbell", store.site, store.address, store.num_bytes,
             urma::put(kTraceNumber, head) |
                 urma::put(kTraceJetty, static_cast<std::uint64_t>(plan_.jetty_idx)));
  while (cursor_ != head) {
    UrmaRequest request = parse_request(
        plan_.rules, cursor_, head, [&](std::uint32_t block) { return read_block(block, store); },
        own_site(store));
    cursor_ += request.num_blocks;
    admit(std::move(request), store);
  }
  check_expected(store, packed_head);
}

std::uint32_t Jetty::checked_head(const Store& store, std::uint32_t published) const {
  if (store.address != plan_.info.sq_doorbell_address || store.num_bytes != 8 || store.value >> 32 != 0) {
    raise(Rule::bad_argument, store.site, "a doorbell is one 8-byte store of the head, a number of 32 bits");
  }
  const auto head = static_cast<std::uint32_t>(store.value);
  const std::uint32_t num_new = head - cursor_;
  if (num_new > published - cursor_ || num_new >> 31 != 0) {
    raise(Rule::doorbell_beyond_head, store.site,
          "the doorbell says " + number_text(head) + ", but the head is " + number_text(published) + " and " +
              number_text(cursor_) + " blocks have been rung for before");
  }
  if (num_new > plan_.rules.sq_depth) {
    raise(Rule::sq_overflow, store.site,
          number_text(num_new) + " blocks at once, but the ring has " + number_text(plan_.rules.sq_depth));
  }
  return head;
}

UrmaBlock Jetty::read_block(std::uint32_t head, const Store& store) const {
  const std::uint32_t idx = head % plan_.rules.sq_depth;
  const std::uint32_t occupant = occupant_[idx];
  if (occupant != 0 && bus_.has_checks() && !store.released->covers(order_.stamp(occupant))) {
    raise(Rule::sq_overflow, store.site,
          "block " + number_text(head) + " was written over request " + number_text(occupant) +
              ", whose completion its producer had not seen");
  }
  UrmaBlock block{};
  read_published(plan_.info.sq_base + std::uint64_t{idx} * urma::kWqebbBytes, block.data(), urma::kWqebbBytes,
                 store, Rule::data_race);
  return block;
}

// What a doorbell publishes must be complete and known to whoever rings it. The read leaves no mark: who may
// overwrite a block is judged by completions.
void Jetty::read_published(std::uint64_t address, void* out, std::uint64_t num_bytes, const Store& store,
                           Rule rule) const {
  try {
    bus_.read(address, out, num_bytes, {{agent_, 0, 0}, store.released.get(), own_site(store)});
  } catch (Violation& violation) {
    if (violation.rule == Rule::data_race && !violation.others.empty()) {
      const Site& writer = violation.others[0].site;
      const bool is_other = writer.rank != store.site.rank || writer.aiv != store.site.aiv;
      violation.rule = is_other ? Rule::sq_two_producers : rule;
    }
    throw;
  }
}

void Jetty::admit(UrmaRequest request, const Store& store) {
  const std::uint32_t number = ++num_requests_;
  for (std::uint32_t i = 0; i < request.num_blocks; ++i) {
    occupant_[(request.head + i) % plan_.rules.sq_depth] = number;
  }
  num_requested_ += request.wants_completion ? 1 : 0;
  if (num_requested_ - num_taken_ > plan_.info.cq_depth) {
    raise(Rule::cq_misuse, store.site,
          number_text(num_requested_ - num_taken_) + " completions may be under way, but the queue holds " +
              number_text(plan_.info.cq_depth));
  }
  Flight flight;
  flight.known = order_.add(request, number, store.released);
  flight.done = order_.completed(flight.known, number);
  flight.site = own_site(store);
  flight.request = std::move(request);
  for (const auto& [earlier_number, earlier] : flights_) {
    flight.num_waiting += waits_for(flight, earlier) ? 1 : 0;
  }
  Flight& kept = flights_.emplace_hint(flights_.end(), number, std::move(flight))->second;
  trace("urma_post", number, kept, kept.request.remote_address);
  if (kept.num_waiting == 0) {
    start(number, kept);
  }
}

// A completion that the packed head does not count would be taken for the next one; one too many is waited
// for forever.
void Jetty::check_expected(const Store& store, std::uint64_t packed_head) const {
  const auto num_expected = static_cast<std::uint32_t>(packed_head >> 32);
  const bool is_all = static_cast<std::uint32_t>(packed_head) == cursor_;
  if (is_all ? num_expected != num_requested_ : num_expected - num_requested_ > plan_.info.cq_depth) {
    raise(Rule::cq_misuse, store.site,
          "the packed head counts " + number_text(num_expected) + " completions, but the requests ask for " +
              number_text(num_requested_));
  }
}

void Jetty::hear_cq_doorbell(const Store& store) {
  if (store.address != plan_.info.cq_doorbell_address || store.num_bytes != 8 ||
      store.value > urma::kCqDoorbellMask) {
    raise(Rule::cq_misuse, store.site, "a CQ doorbell is one 8-byte store of the low 24 bits of the tail");
  }
  if (const auto other = consumer_.take(store); other && bus_.has_checks()) {
    raise(Rule::cq_misuse, store.site,
          "another AIV takes completions of the same jetty, and no order is between them", {*other});
  }
  const auto num_new = (static_cast<std::uint32_t>(store.value) - num_taken_) & urma::kCqDoorbellMask;
  check_taken(store, num_new);
  num_taken_ += num_new;
  posted_.erase(posted_.begin(), posted_.begin() + num_new);
}

void Jetty::check_taken(const Store& store, std::uint32_t num_taken) const {
  if (num_taken > posted_.size()) {
    raise(Rule::cq_misuse, store.site,
          "the CQ doorbell gives back " + number_text(num_taken) + " entries, but " +
              number_text(posted_.size()) + " are there");
  }
  for (std::uint32_t i = 0; i < num_taken && bus_.has_checks(); ++i) {
    if (!store.released->covers(order_.stamp(posted_[i]))) {
      raise(Rule::cq_misuse, store.site, "the CQ doorbell gives back an entry that its AIV has not read");
    }
  }
}

}  // namespace epsim::twin
