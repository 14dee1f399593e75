#include "planner/chunks/packing.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace elixir::planner {
namespace {

uint64_t aligned(uint64_t numel) { return round_up(numel, kAlignNumel); }

// Where the next parameter goes.
class NextFit {
 public:
  explicit NextFit(uint64_t chunk_numel) : chunk_numel_(chunk_numel) {}

  PackedPlace place(const PackedSize& size) {
    const uint64_t run = shm::chunks_for(size.numel, chunk_numel_);
    const bool opens =
        chunks_ == 0 || size.own_chunk || closed_ || used_numel_ + size.numel > chunk_numel_;
    if (opens) {
      ++chunks_;
      used_numel_ = 0;
    }
    const PackedPlace place{chunks_ - 1, used_numel_};
    // Of a run, what each of its chunks must hold for it to take no more of them.
    used_numel_ += aligned((size.numel + run - 1) / run);
    longest_numel_ = std::max(longest_numel_, used_numel_);
    closed_ = size.own_chunk || run > 1;
    chunks_ += static_cast<uint32_t>(run - 1);
    return place;
  }
  void close() { closed_ = true; }
  uint32_t chunks() const { return chunks_; }
  uint64_t longest_numel() const { return longest_numel_; }  // of a chunk

 private:
  const uint64_t chunk_numel_;
  uint32_t chunks_ = 0;
  uint64_t used_numel_ = 0, longest_numel_ = 0;
  bool closed_ = false;
};

// Gathers the distinct chunks of one operator after another, in the order in which they come.
class DistinctChunks {
 public:
  explicit DistinctChunks(uint32_t n_chunks) : seen_in_(n_chunks) {}

  void begin() { ++operator_; }
  void add(uint32_t chunk, std::vector<uint32_t>* chunks) {
    ELIXIR_CHECK(chunk < seen_in_.size(), "chunk {} of {}", chunk, seen_in_.size());
    if (seen_in_[chunk] == operator_) return;
    seen_in_[chunk] = operator_;
    chunks->push_back(chunk);
  }

 private:
  std::vector<uint64_t> seen_in_;  // by chunk, the last operator that named it
  uint64_t operator_ = 0;
};

}  // namespace

std::vector<PackedSize> packed_sizes(const ModelProfile& profile) {
  std::vector<PackedSize> sizes;
  for (const ProfiledParameter& param : profile.params) {
    sizes.push_back({param.numel, param.shared, param.frozen});
  }
  return sizes;
}

double Packing::waste_ratio() const {
  uint64_t used = 0;
  for (const uint64_t one : numel) used += one;
  return static_cast<double>(total_chunks()) * static_cast<double>(chunk_numel) /
             static_cast<double>(used) -
         1;
}

uint64_t Packing::long_numel() const {
  if (is_long.empty()) return 0;
  return *std::max_element(run.begin(), run.end()) * chunk_numel;
}

uint32_t Packing::whole_runs(uint32_t most) const {
  uint32_t n = std::min(most, total_chunks());
  while (n < total_chunks() && run[n] == 0) --n;
  return n;
}

uint32_t Packing::whole_runs_from(uint32_t least) const {
  uint32_t n = std::min(least, total_chunks());
  while (n < total_chunks() && run[n] == 0) ++n;
  return n;
}

uint32_t Packing::runs_from(uint32_t chunk) const {
  return is_long.empty() ? 0 : runs_before.back() - runs_before[chunk];
}

uint32_t Packing::ordinary_chunks_from(uint32_t chunk) const {
  const uint32_t in_runs =
      is_long.empty() ? 0 : run_chunks_before.back() - run_chunks_before[chunk];
  return total_chunks() - chunk - in_runs;
}

namespace {

void count_runs(Packing& packing) {
  uint32_t runs = 0, run_chunks = 0;
  for (uint32_t chunk = 0; chunk <= packing.total_chunks(); ++chunk) {
    packing.runs_before.push_back(runs);
    packing.run_chunks_before.push_back(run_chunks);
    if (chunk == packing.total_chunks()) return;
    runs += packing.is_long[chunk];
    run_chunks += packing.run[chunk] != 1 ? 1 : 0;
  }
}

// The chunks from `first` on hold a parameter of so many elements together.
void add_run(uint32_t first, uint64_t numel, Packing& packing) {
  const auto run = static_cast<uint32_t>(shm::chunks_for(numel, packing.chunk_numel));
  packing.is_long.resize(packing.run.size(), 0);
  packing.is_long[first] = 1;
  for (uint32_t i = 0; i < run; ++i) {
    packing.run[first + i] = i == 0 ? run : 0;
    packing.numel[first + i] = std::min(numel - i * packing.chunk_numel, packing.chunk_numel);
  }
}

}  // namespace

Packing pack(std::span<const PackedSize> sizes, uint64_t chunk_numel) {
  Packing packing;
  packing.chunk_numel = aligned(chunk_numel);
  packing.places.resize(sizes.size());
  NextFit fit(packing.chunk_numel);
  for (const bool frozen : {false, true}) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i].frozen == frozen) packing.places[i] = fit.place(sizes[i]);
    }
    fit.close();
    if (!frozen) packing.n_chunks = fit.chunks();
  }
  packing.n_frozen_chunks = fit.chunks() - packing.n_chunks;
  packing.numel.resize(fit.chunks());
  packing.run.assign(fit.chunks(), 1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint64_t run = shm::chunks_for(sizes[i].numel, packing.chunk_numel);
    const uint32_t first = packing.places[i].chunk;
    if (run == 1) {
      packing.numel[first] += sizes[i].numel;
    } else {
      add_run(first, sizes[i].numel, packing);
    }
  }
  if (!packing.is_long.empty()) count_runs(packing);
  return packing;
}

PackedLength packed_length(std::span<const PackedSize> sizes, uint64_t chunk_numel) {
  NextFit fit(aligned(chunk_numel));
  for (const bool frozen : {false, true}) {
    for (const PackedSize& size : sizes) {
      if (size.frozen == frozen) fit.place(size);
    }
    fit.close();
  }
  return {fit.chunks(), fit.longest_numel()};
}

uint64_t possible_chunk_numel(uint64_t model_numel) {
  return aligned(2 * (model_numel / shm::kMaxChunks + 1));
}

std::vector<std::vector<uint32_t>> chunks_of_steps(const ModelProfile& profile,
                                                   const Packing& packing) {
  ELIXIR_CHECK(packing.places.size() == profile.params.size(), "{} places of {} parameters",
               packing.places.size(), profile.params.size());
  std::vector<std::vector<uint32_t>> chunks(profile.steps.size());
  DistinctChunks distinct(packing.total_chunks());
  for (size_t i = 0; i < profile.steps.size(); ++i) {
    distinct.begin();
    for (const uint32_t param : profile.steps[i]) {
      distinct.add(packing.places[param].chunk, &chunks[i]);
    }
  }
  return chunks;
}

std::vector<std::vector<uint32_t>> chunks_of_regions(const ModelProfile& profile,
                                                     const Packing& packing) {
  std::vector<std::vector<uint32_t>> uses;
  DistinctChunks distinct(packing.total_chunks());
  auto region = profile.checkpoint_regions.begin();
  for (uint32_t i = 0; i < profile.steps.size();) {
    uint32_t last = i;
    if (region != profile.checkpoint_regions.end() && region->first == i) last = region++->last;
    std::vector<uint32_t> chunks;
    distinct.begin();
    for (; i <= last; ++i) {
      for (const uint32_t param : profile.steps[i]) {
        distinct.add(packing.places[param].chunk, &chunks);
      }
    }
    const bool repeats = !uses.empty() && uses.back() == chunks;
    if (!chunks.empty() && !repeats) uses.push_back(std::move(chunks));
  }
  return uses;
}

LeastBlocks least_blocks(const std::vector<std::vector<uint32_t>>& operators,
                         const Packing& packing) {
  LeastBlocks least;
  for (const std::vector<uint32_t>& chunks : operators) {
    const auto in_long =
        static_cast<uint32_t>(std::count_if(chunks.begin(), chunks.end(), [&](uint32_t chunk) {
          return !packing.is_long.empty() && packing.is_long[chunk] != 0;
        }));
    least.blocks = std::max(least.blocks, static_cast<uint32_t>(chunks.size()) - in_long);
    least.long_blocks = std::max(least.long_blocks, in_long);
  }
  return least;
}

}  // namespace elixir::planner
