#include "planner/cache/fetches.h"

#include <algorithm>
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

  std::vector<CacheFetch> run(std::span<const uint32_t> others_pinned) {
    for (uint32_t i = 0; i < others_pinned.size(); ++i) {
      const uint32_t use = n_held_ + i;
      uint32_t& block = block_of_[dense_[use]];
      if (block == kNone) {
        CacheFetch fetch{.chunk = chunks_[use], .needed_at = i};
        if (!take_room(use - std::min(i, others_pinned[i]), &fetch)) return {};
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
                                      std::span<const uint32_t> others_pinned, uint32_t blocks,
                                      std::span<const uint32_t> held) {
  ELIXIR_CHECK(order.size() == others_pinned.size() && held.size() <= blocks,
               "{} uses with {} counts of what is pinned; {} chunks in {} blocks", order.size(),
               others_pinned.size(), held.size(), blocks);
  return Belady(order, blocks, held).run(others_pinned);
}

Result<std::vector<CacheFetch>> schedule_fetches(const UseList& uses, uint32_t blocks,
                                                 std::span<const uint32_t> held) {
  std::vector<uint32_t> others_pinned, operator_of;
  others_pinned.reserve(uses.chunks().size());
  operator_of.reserve(uses.chunks().size());
  for (uint32_t op = 0; op < uses.n_operators(); ++op) {
    const uint32_t needed = uses.end(op) - uses.begin(op);
    if (needed > blocks) {
      return error(Code::kInvalidArgument,
                   "step {} needs {} chunks at once and the rCache has {} blocks: give it at least "
                   "{}",
                   op, needed, blocks, needed);
    }
    for (uint32_t pinned = 0; pinned < needed; ++pinned) {
      others_pinned.push_back(pinned);
      operator_of.push_back(op);
    }
  }
  if (held.size() > blocks) {
    return error(Code::kInvalidArgument, "{} chunks are held by {} blocks", held.size(), blocks);
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
