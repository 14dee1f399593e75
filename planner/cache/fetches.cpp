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

// A block that may lose its chunk, as it was when its last operator ended.
struct Victim {
  uint32_t next_use, last_use, block;

  // Of a priority queue: the greatest goes first.
  bool operator<(const Victim& other) const {
    return next_use != other.next_use ? next_use < other.next_use : last_use > other.last_use;
  }
};

class Belady {
 public:
  Belady(const UseList& uses, uint32_t blocks) : uses_(uses), n_blocks_(blocks) {
    chunks_ = dense_chunks(uses.chunks(), &n_chunks_);
    next_ = next_uses(chunks_, n_chunks_);
    block_of_.assign(n_chunks_, kNone);
  }

  std::vector<CacheFetch> run() {
    for (uint32_t op = 0; op < uses_.n_operators(); ++op) {
      for (uint32_t use = uses_.begin(op); use < uses_.end(op); ++use) touch(op, use);
      // What the operator uses can lose its block once the operator is over.
      for (uint32_t use = uses_.begin(op); use < uses_.end(op); ++use) {
        victims_.push({next_[use], use, block_of_[chunks_[use]]});
      }
    }
    return std::move(fetches_);
  }

 private:
  struct Block {
    uint32_t use = kNone;  // the last one of its chunk
    uint32_t op = 0;       // that made it
  };

  void touch(uint32_t op, uint32_t use) {
    uint32_t& block = block_of_[chunks_[use]];
    if (block == kNone) {
      fetches_.push_back({.chunk = uses_.chunks()[use], .needed_at = op});
      block = take_room(fetches_.back());
    }
    blocks_[block] = {use, op};
  }

  uint32_t take_room(CacheFetch& fetch) {
    if (blocks_.size() < n_blocks_) {
      fetch.block = static_cast<uint32_t>(blocks_.size());
      blocks_.emplace_back();
      return fetch.block;
    }
    // A block that was used again since has another entry, or will when its operator is over.
    ELIXIR_CHECK(!victims_.empty(), "all {} blocks are in use by one operator", n_blocks_);
    while (blocks_[victims_.top().block].use != victims_.top().last_use) victims_.pop();
    const Victim victim = victims_.top();
    victims_.pop();
    fetch.block = victim.block;
    fetch.room_from = blocks_[victim.block].op + 1;
    fetch.evicted = uses_.chunks()[victim.last_use];
    fetch.evicted_returns = victim.next_use != kNone;
    block_of_[chunks_[victim.last_use]] = kNone;
    return victim.block;
  }

  const UseList& uses_;
  const uint32_t n_blocks_;
  uint32_t n_chunks_ = 0;
  std::vector<uint32_t> chunks_, next_;  // by use
  std::vector<uint32_t> block_of_;       // by chunk
  std::vector<Block> blocks_;            // that have been taken
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

Result<std::vector<CacheFetch>> schedule_fetches(const UseList& uses, uint32_t blocks,
                                                 std::span<const uint32_t> held) {
  for (uint32_t op = 0; op < uses.n_operators(); ++op) {
    const uint32_t needed = uses.end(op) - uses.begin(op);
    if (needed <= blocks) continue;
    return error(Code::kInvalidArgument,
                 "step {} needs {} chunks at once and the rCache has {} blocks: give it at least "
                 "{}",
                 op, needed, blocks, needed);
  }
  if (held.empty()) return Belady(uses, blocks).run();
  if (held.size() > blocks) {
    return error(Code::kInvalidArgument, "{} chunks are held by {} blocks", held.size(), blocks);
  }
  // As if an operator before the first had brought them.
  UseList with_held;
  with_held.reserve(uses.n_operators() + 1, uses.chunks().size() + held.size());
  with_held.add(held);
  for (uint32_t op = 0; op < uses.n_operators(); ++op) {
    with_held.add(uses.chunks().subspan(uses.begin(op), uses.end(op) - uses.begin(op)));
  }
  std::vector<CacheFetch> fetches = Belady(with_held, blocks).run();
  ELIXIR_CHECK(fetches.size() >= held.size(), "{} chunks are held and {} were fetched", held.size(),
               fetches.size());
  fetches.erase(fetches.begin(), fetches.begin() + static_cast<ptrdiff_t>(held.size()));
  for (CacheFetch& fetch : fetches) {
    --fetch.needed_at;
    if (fetch.room_from > 0) --fetch.room_from;
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
