#include <twin/urma_request.hpp>

#include <cstdio>
#include <cstring>
#include <string>

namespace epsim::twin {

namespace {

using urma::get;

// Bits of header word 0 that belong to no field.
constexpr std::uint64_t kStrayBits = (std::uint64_t{7} << 24) | (std::uint64_t{0x3f} << 48);
constexpr std::uint64_t kWindowPrefixBits = 40;

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

class Parser {
 public:
  Parser(const UrmaRules& rules, std::uint32_t head, std::uint32_t end, const Site& site)
      : rules_(rules), end_(end), site_(site) {
    request_.head = head;
  }

  UrmaRequest run(const ReadBlock& read_block) {
    add(read_block(request_.head));
    read_flags();
    if (request_.opcode == urma::kOpcodeNop) {
      require(num_sges() == 0 && !is_inline(), Rule::sqe_bad_length, "is a NOP, but carries a payload");
      return std::move(request_);
    }
    read_size();
    for (std::uint32_t i = 1; i < request_.num_blocks; ++i) {
      add(read_block(request_.head + i));
    }
    read_payload();
    check_target(peer());
    return std::move(request_);
  }

 private:
  void require(bool is_true, Rule rule, const std::string& what) const {
    if (!is_true) {
      raise(rule, site_, "the request at block " + std::to_string(request_.head) + " " + what);
    }
  }
  void add(const UrmaBlock& block) { words_.insert(words_.end(), block.begin(), block.end()); }
  std::uint64_t flags() const { return words_[0]; }
  bool is_inline() const { return get(urma::kInline, flags()) != 0; }
  bool has_notify() const { return request_.opcode == kOpcodeWriteWithNotify; }
  std::uint32_t num_sges() const { return static_cast<std::uint32_t>(get(urma::kNumSges, words_[1])); }
  std::uint32_t payload_word() const { return urma::kHeaderWords + (has_notify() ? kNotifyWords : 0); }

  void read_flags() {
    request_.opcode = static_cast<std::uint32_t>(get(urma::kOpcode, flags()));
    request_.order = static_cast<std::uint32_t>(get(urma::kOrder, flags()));
    request_.has_fence = get(urma::kFence, flags()) != 0;
    request_.wants_completion = get(urma::kCompletion, flags()) != 0;
    const std::uint32_t owner = urma::owner_bit(request_.head, rules_.sq_depth);
    require(get(urma::kOwner, flags()) == owner, Rule::sqe_bad_owner,
            "has owner bit " + std::to_string(1 - owner) + ": nobody has written it in this lap of the ring");
    check_index();
    require((flags() & kStrayBits) == 0, Rule::sqe_bad_opcode, "sets bits that belong to no field");
    require(request_.order <= urma::kOrderAfterAll || request_.order == urma::kOrderStrong,
            Rule::sqe_bad_opcode, "has order " + std::to_string(request_.order) + ", which means nothing");
    require(request_.opcode == urma::kOpcodeWrite || request_.opcode == urma::kOpcodeNop || has_notify(),
            Rule::sqe_bad_opcode, "has opcode " + hex(request_.opcode));
  }

  // Single writes from the scalar unit (strong, fence, completion) carry index 0 (deepep-ascend.md 3.6).
  void check_index() const {
    const std::uint64_t index = get(urma::kWqebbIdx, flags());
    const bool is_single =
        request_.order == urma::kOrderStrong && request_.has_fence && request_.wants_completion;
    require(index == (request_.head & 0xffffU) || (index == 0 && is_single), Rule::sqe_bad_index,
            "says that it is at block " + std::to_string(index));
  }

  void read_size() {
    const std::uint32_t room = (kMaxSqeBlocks * urma::kWqebbWords - payload_word()) *
                               static_cast<std::uint32_t>(sizeof(std::uint64_t));
    std::uint64_t num_bytes = std::uint64_t{num_sges()} * urma::kSgeWords * sizeof(std::uint64_t);
    if (is_inline()) {
      require(num_sges() == 0, Rule::sqe_bad_length, "is inline, but has gather elements");
      num_bytes = get(urma::kInlineBytes, flags());
    }
    require(num_bytes > 0 && num_bytes <= room && num_sges() <= kMaxSges, Rule::sqe_bad_length,
            "has " + std::to_string(num_bytes) + " bytes of payload or gather elements; 1 to " +
                std::to_string(room) + " fit");
    const std::uint64_t all_bytes = payload_word() * sizeof(std::uint64_t) + num_bytes;
    request_.num_blocks = static_cast<std::uint32_t>((all_bytes + urma::kWqebbBytes - 1) / urma::kWqebbBytes);
    require(end_ - request_.head >= request_.num_blocks, Rule::sqe_bad_length,
            "takes " + std::to_string(request_.num_blocks) + " blocks, which reach beyond the doorbell");
  }

  void read_payload() {
    request_.remote_address = words_[urma::kHeaderWords - 1];
    request_.num_sges = num_sges();
    if (is_inline()) {
      request_.num_bytes = get(urma::kInlineBytes, flags());
      request_.inline_bytes.resize(request_.num_bytes);
      std::memcpy(request_.inline_bytes.data(), words_.data() + payload_word(), request_.num_bytes);
    }
    for (std::uint32_t i = 0; i < num_sges(); ++i) {
      read_sge(payload_word() + i * urma::kSgeWords);
    }
    require(request_.num_bytes <= urma::kMaxWriteBytes, Rule::sqe_bad_length,
            "writes " + std::to_string(request_.num_bytes) + " bytes; 2**28 is the most");
  }

  void read_sge(std::uint32_t word) {
    const std::uint64_t num_bytes = words_[word] & 0xffffffffU;
    const std::uint64_t source = words_[word + 1];
    require(num_bytes > 0, Rule::sqe_bad_length, "has an empty gather element");
    require(words_[word] >> 32 == 0, Rule::wrong_token,
            "has a gather element with a token; local memory has none");
    require(static_cast<int>(source >> kWindowPrefixBits) == rules_.rank + 1, Rule::gm_out_of_bounds,
            "gathers from " + hex(source) + ", which is not memory of its own rank");
    request_.pieces.push_back({source, request_.remote_address + request_.num_bytes, num_bytes});
    request_.num_bytes += num_bytes;
  }

  const urma::PeerInfo& peer() const {
    const auto has_eid = [&](const std::uint64_t* eid) { return words_[2] == eid[0] && words_[3] == eid[1]; };
    const bool is_self = has_eid(rules_.own_eid) ||
                         static_cast<int>(request_.remote_address >> kWindowPrefixBits) == rules_.rank + 1;
    require(!is_self, Rule::self_send, "writes to its own rank");
    for (const UrmaPeer& candidate : rules_.peers) {
      if (has_eid(candidate.info.eid)) {
        return candidate.info;
      }
    }
    raise(Rule::wrong_token, site_,
          "the request at block " + std::to_string(request_.head) + " names no peer");
  }

  void check_target(const urma::PeerInfo& peer) {
    const std::uint64_t ids =
        urma::put(urma::kTpId, ~std::uint64_t{0}) | urma::put(urma::kTokenId, ~std::uint64_t{0});
    require(((words_[1] ^ peer.tp_and_token_id) & ids) == 0, Rule::wrong_token,
            "has transport and token id " + hex(words_[1] & ids) + ", its peer " + hex(peer.tp_and_token_id));
    require(get(urma::kTokenEnable, flags()) != 0 && words_[4] == peer.token_value, Rule::wrong_token,
            "has token " + hex(words_[4]) + ", its peer " + hex(peer.token_value));
    check_window(peer, request_.remote_address, request_.num_bytes);
    if (!has_notify()) {
      return;
    }
    const std::uint64_t token = get(urma::kTokenId, peer.tp_and_token_id) | peer.token_value << 32;
    require(words_[6] == token, Rule::wrong_token, "notifies under token " + hex(words_[6]));
    request_.notify_address = words_[7];
    request_.notify_value = words_[8];
    require(request_.notify_address % sizeof(std::uint64_t) == 0, Rule::unaligned_access,
            "notifies at " + hex(request_.notify_address) + ", which is no multiple of 8");
    check_window(peer, request_.notify_address, sizeof(std::uint64_t));
  }

  void check_window(const urma::PeerInfo& peer, std::uint64_t address, std::uint64_t num_bytes) const {
    const bool is_inside = address >= peer.window_base && num_bytes <= peer.window_bytes &&
                           address - peer.window_base <= peer.window_bytes - num_bytes;
    require(is_inside, Rule::remote_out_of_window,
            "writes " + std::to_string(num_bytes) + " bytes at " + hex(address) +
                "; the window of its peer is " + std::to_string(peer.window_bytes) + " bytes at " +
                hex(peer.window_base));
  }

  const UrmaRules& rules_;
  std::uint32_t end_;
  const Site& site_;
  std::vector<std::uint64_t> words_;
  UrmaRequest request_;
};

}  // namespace

UrmaRequest parse_request(const UrmaRules& rules, std::uint32_t head, std::uint32_t end,
                          const ReadBlock& read_block, const Site& site) {
  return Parser(rules, head, end, site).run(read_block);
}

}  // namespace epsim::twin
