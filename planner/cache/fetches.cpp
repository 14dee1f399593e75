#include "planner/cache/fetches.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <unordered_set>

#include "base/check.h"

namespace elixir::planner {
namespace {

// Small numbers in the place of any: an index of its own for each chunk, in no order.
std::vector<uint32_t> dense_chunks(std::span<const uint32_t> chunks, uint32_t* n_chunks) {
  std::vector<uint32_t> dense(chunks.begin(), chunks.end());
  const uint32_t greatest = dense.empty() ? 0 : *std::max_element(dense.begin(), dense.end());
  if (greatest < 4 * dense.size() + 1024) {  // as they are in practice
    *n_chunks = greatest + 1;
    return dense;
  }
  std::vector<uint32_t> known = dense;
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  for (uint32_t& chunk : dense) {
    chunk =
        static_cast<uint32_t>(std::lower_bound(known.begin(), known.end(), chunk) - known.begin());
  }
  *n_chunks = static_cast<uint32_t>(known.size());
  return dense;
}

// By use, the next use of its chunk; kNone: there is none.
std::vector<uint32_t> next_uses(std::span<const uint32_t> chunks, uint32_t n_chunks) {
  std::vector<uint32_t> next(chunks.size()), seen(n_chunks, kNone);
  for (size_t i = chunks.size(); i-- > 0;) {
    next[i] = seen[chunks[i]];
    seen[chunks[i]] = static_cast<uint32_t>(i);
  }
  return next;
}

// A block that may lose its chunk, as it was when the chunk's last use was over. Uses are counted
// here with what is held at the start before the step's own.
struct Victim {
  uint32_t next_use, last_use, block;

  // Of a priority queue: the greatest goes first.
  bool operator<(const Victim& other) const {
    return next_use != other.next_use ? next_use < other.next_use : last_use > other.last_use;
  }
};

class Belady {
 public:
  Belady(std::span<const uint32_t> order, uint32_t blocks, std::span<const uint32_t> held)
      : last_use_(blocks, kNone) {
    for (uint32_t block = 0; block < held.size(); ++block) {
      if (held[block] != kNone) chunks_.push_back(held[block]);
    }
    n_held_ = static_cast<uint32_t>(chunks_.size());
    chunks_.insert(chunks_.end(), order.begin(), order.end());
    dense_ = dense_chunks(chunks_, &n_chunks_);
    next_ = next_uses(dense_, n_chunks_);
    block_of_.assign(n_chunks_, kNone);
    uint32_t use = 0;
    for (uint32_t block = 0; block < blocks; ++block) {
      const bool holds = block < held.size() && held[block] != kNone;
      if (!holds) {
        empty_.push_back(block);
        continue;
      }
      block_of_[dense_[use]] = block;
      last_use_[block] = use++;
    }
    std::reverse(empty_.begin(), empty_.end());
  }

  // Empty: the blocks do not suffice.
  std::optional<std::vector<CacheFetch>> run(std::span<const uint32_t> others_pinned) {
    for (uint32_t i = 0; i < others_pinned.size(); ++i) {
      const uint32_t use = n_held_ + i;
      uint32_t& block = block_of_[dense_[use]];
      if (block == kNone) {
        CacheFetch fetch{.chunk = chunks_[use], .needed_at = i};
        if (!take_room(use - std::min(i, others_pinned[i]), &fetch)) return std::nullopt;
        block = fetch.block;
        fetches_.push_back(fetch);
      }
      last_use_[block] = use;
    }
    return std::move(fetches_);
  }

 private:
  // An empty block, else that of the chunk whose next use is farthest, of those whose last use
  // comes before `pinned_from`. False: there is none.
  bool take_room(uint32_t pinned_from, CacheFetch* fetch) {
    if (!empty_.empty()) {
      fetch->block = empty_.back();
      empty_.pop_back();
      return true;
    }
    for (; over_ < pinned_from; ++over_) {
      victims_.push({next_[over_], over_, block_of_[dense_[over_]]});
    }
    // A block that was used again since has another entry, or will when that use is over.
    while (!victims_.empty() && last_use_[victims_.top().block] != victims_.top().last_use) {
      victims_.pop();
    }
    if (victims_.empty()) return false;
    const Victim victim = victims_.top();
    victims_.pop();
    fetch->block = victim.block;
    fetch->room_from = victim.last_use < n_held_ ? 0 : victim.last_use - n_held_ + 1;
    fetch->evicted = chunks_[victim.last_use];
    fetch->evicted_returns = victim.next_use != kNone;
    block_of_[dense_[victim.last_use]] = kNone;
    return true;
  }

  uint32_t n_held_ = 0, n_chunks_ = 0;
  std::vector<uint32_t> chunks_, dense_, next_;  // by use, what is held first
  std::vector<uint32_t> block_of_;               // by chunk
  std::vector<uint32_t> last_use_;               // by block
  std::vector<uint32_t> empty_;                  // the lowest last
  uint32_t over_ = 0;                            // uses before it are in victims_
  std::priority_queue<Victim> victims_;
  std::vector<CacheFetch> fetches_;
};

// The uses of one kind of blocks among those of both.
struct UsesOfKind {
  std::vector<uint32_t> order, others_pinned;
  std::vector<uint32_t> places;  // of them in the step
};

// Belady's choices are each kind's own; what they are told in is the whole step's places and
// blocks.
std::optional<std::vector<CacheFetch>> fetches_of_kind(const UsesOfKind& uses, uint32_t first_block,
                                                       uint32_t blocks,
                                                       std::span<const uint32_t> held) {
  const std::span<const uint32_t> held_there =
      held.subspan(std::min<size_t>(first_block, held.size()));
  std::optional<std::vector<CacheFetch>> fetches =
      Belady(uses.order, blocks, held_there.first(std::min<size_t>(blocks, held_there.size())))
          .run(uses.others_pinned);
  if (!fetches) return fetches;
  for (CacheFetch& fetch : *fetches) {
    fetch.block += first_block;
    fetch.needed_at = uses.places[fetch.needed_at];
    if (fetch.room_from > 0) fetch.room_from = uses.places[fetch.room_from - 1] + 1;
  }
  return fetches;
}

std::optional<std::vector<CacheFetch>> fetches_of_both(std::span<const uint32_t> order,
                                                       std::span<const uint32_t> others_pinned,
                                                       const CacheBlocks& blocks,
                                                       std::span<const uint32_t> held) {
  UsesOfKind kinds[2];
  for (uint32_t i = 0; i < order.size(); ++i) {
    UsesOfKind& uses = kinds[blocks.in_long_block(order[i]) ? 1 : 0];
    uses.order.push_back(order[i]);
    uses.others_pinned.push_back(others_pinned[i]);
    uses.places.push_back(i);
  }
  const auto ordinary = fetches_of_kind(kinds[0], 0, blocks.blocks, held);
  const auto in_long = fetches_of_kind(kinds[1], blocks.blocks, blocks.long_blocks, held);
  if (!ordinary || !in_long) return std::nullopt;
  std::vector<CacheFetch> both(ordinary->size() + in_long->size());
  std::merge(ordinary->begin(), ordinary->end(), in_long->begin(), in_long->end(), both.begin(),
             [](const CacheFetch& a, const CacheFetch& b) { return a.needed_at < b.needed_at; });
  return both;
}

}  // namespace

void UseList::reserve(size_t operators, size_t uses) {
  ends_.reserve(operators);
  chunks_.reserve(uses);
}

void UseList::add(std::span<const uint32_t> chunks) {
  constexpr size_t kFew = 32;  // that are looked through faster than hashed
  const auto first = static_cast<ptrdiff_t>(chunks_.size());
  std::unordered_set<uint32_t> seen;
  for (const uint32_t chunk : chunks) {
    const bool is_new = chunks.size() <= kFew ? std::find(chunks_.begin() + first, chunks_.end(),
                                                          chunk) == chunks_.end()
                                              : seen.insert(chunk).second;
    if (is_new) chunks_.push_back(chunk);
  }
  ends_.push_back(static_cast<uint32_t>(chunks_.size()));
}

std::vector<CacheFetch> schedule_uses(std::span<const uint32_t> order,
                                      std::span<const uint32_t> others_pinned,
                                      const CacheBlocks& blocks, std::span<const uint32_t> held) {
  ELIXIR_CHECK(order.size() == others_pinned.size() && held.size() <= blocks.all(),
               "{} uses with {} counts of what is pinned; {} chunks in {} blocks", order.size(),
               others_pinned.size(), held.size(), blocks.all());
  std::optional<std::vector<CacheFetch>> fetches =
      blocks.is_long.empty() ? Belady(order, blocks.blocks, held).run(others_pinned)
                             : fetches_of_both(order, others_pinned, blocks, held);
  return fetches ? std::move(*fetches) : std::vector<CacheFetch>();
}

Result<std::vector<CacheFetch>> schedule_fetches(const UseList& uses, const CacheBlocks& blocks,
                                                 std::span<const uint32_t> held) {
  std::vector<uint32_t> others_pinned, operator_of;
  others_pinned.reserve(uses.chunks().size());
  operator_of.reserve(uses.chunks().size());
  for (uint32_t op = 0; op < uses.n_operators(); ++op) {
    uint32_t needed[2] = {0, 0};
    for (uint32_t use = uses.begin(op); use < uses.end(op); ++use) {
      others_pinned.push_back(needed[blocks.in_long_block(uses.chunks()[use]) ? 1 : 0]++);
      operator_of.push_back(op);
    }
    if (needed[0] > blocks.blocks) {
      return error(Code::kInvalidArgument,
                   "step {} needs {} chunks at once and the rCache has {} blocks: give it at least "
                   "{}",
                   op, needed[0], blocks.blocks, needed[0]);
    }
    if (needed[1] > blocks.long_blocks) {
      return error(Code::kInvalidArgument,
                   "step {} needs {} parameters longer than a chunk at once and the rCache has {} "
                   "long blocks: give it at least {}",
                   op, needed[1], blocks.long_blocks, needed[1]);
    }
  }
  if (held.size() > blocks.all()) {
    return error(Code::kInvalidArgument, "{} chunks are held by {} blocks", held.size(),
                 blocks.all());
  }
  std::vector<CacheFetch> fetches = schedule_uses(uses.chunks(), others_pinned, blocks, held);
  for (CacheFetch& fetch : fetches) {
    fetch.needed_at = operator_of[fetch.needed_at];
    if (fetch.room_from > 0) fetch.room_from = operator_of[fetch.room_from - 1] + 1;
  }
  return fetches;
}

std::vector<uint32_t> held_after(std::span<const CacheFetch> fetches,
                                 std::span<const uint32_t> held) {
  std::vector<uint32_t> by_block(held.begin(), held.end());
  for (const CacheFetch& fetch : fetches) {
    if (fetch.block >= by_block.size()) by_block.resize(fetch.block + 1, kNone);
    by_block[fetch.block] = fetch.chunk;
  }
  std::erase(by_block, kNone);
  return by_block;
}

}  // namespace elixir::planner
