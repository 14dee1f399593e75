#include "tests/client/thread_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/mutex.h"
#include "base/throw_error.h"
#include "tests/support/run_threads.h"

namespace elixir::test {
namespace {

constexpr std::chrono::seconds kPatience{240};

}  // namespace

// Where all ranks come twice in each collective: with their memory, and once they have read the
// others'.
class ThreadGroups::Meeting {
 public:
  explicit Meeting(uint32_t ranks) : memory_(ranks), signatures_(ranks) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      members_.push_back({.rank = rank, .pid = 100 + rank, .host = "threads", .gpu_uuid = ""});
    }
  }

  const std::vector<Member>& members() const { return members_; }

  // Everyone's memory, by rank, once all have come with theirs.
  std::vector<std::byte*> bring(uint32_t rank, CollectiveSignature collective, std::byte* memory) {
    {
      const MutexLock lock(mutex_);
      memory_[rank] = memory;
      signatures_[rank] = collective.pack();
      if (rank == 0) note(collective);
    }
    come(collective);
    const MutexLock lock(mutex_);
    for (uint32_t other = 0; other < signatures_.size(); ++other) {
      if (signatures_[other] == collective.pack()) continue;
      throw Error(error(Code::kProtocol, "{} makes {}, {} {}", members_[rank].name(),
                        collective.name(), members_[other].name(),
                        CollectiveSignature::unpack(signatures_[other]).name()));
    }
    return memory_;
  }

  // Returns when all have come here.
  void come(CollectiveSignature collective) {
    MutexLock lock(mutex_);
    const uint64_t mine = round_;
    if (++here_ == members_.size()) {
      here_ = 0;
      ++round_;
      changed_.notify_all();
    }
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (round_ == mine) {
      if (changed_.wait_until(lock, end)) continue;
      throw Error(error(Code::kTimedOut, "not all ranks have made {}", collective.name()));
    }
  }

  void report(const Status& failure) {
    const MutexLock lock(mutex_);
    reports_.push_back(failure);
  }
  std::vector<Status> reports() {
    const MutexLock lock(mutex_);
    return reports_;
  }
  std::vector<std::string> made() {
    const MutexLock lock(mutex_);
    return made_;
  }

 private:
  void note(CollectiveSignature collective) ELIXIR_REQUIRES(mutex_) {
    const bool gathers = collective.kind == CollectiveKind::kAllGather;
    if (!gathers && collective.kind != CollectiveKind::kReduceScatter) return;
    made_.push_back((gathers ? "G" : "R") + std::to_string(collective.chunk));
  }

  std::vector<Member> members_;  // constant

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::byte*> memory_ ELIXIR_GUARDED_BY(mutex_);
  std::vector<uint64_t> signatures_ ELIXIR_GUARDED_BY(mutex_);
  size_t here_ ELIXIR_GUARDED_BY(mutex_) = 0;
  uint64_t round_ ELIXIR_GUARDED_BY(mutex_) = 0;
  std::vector<Status> reports_ ELIXIR_GUARDED_BY(mutex_);
  std::vector<std::string> made_ ELIXIR_GUARDED_BY(mutex_);
};

class ThreadGroups::Group final : public CollectiveGroup {
 public:
  Group(Meeting& meeting, uint32_t rank) : meeting_(meeting), rank_(rank) {}

  uint32_t rank() const override { return rank_; }
  const std::vector<Member>& members() const override { return meeting_.members(); }
  bool on_host() const override { return true; }
  std::unique_ptr<EnteredStream> enter(const std::optional<TorchStream>&) override {
    return nullptr;
  }

  std::unique_ptr<CollectiveWork> all_gather(std::byte* block, uint64_t shard_numel,
                                             ComputeType type, uint32_t chunk) override {
    fill({CollectiveKind::kAllGather, shard_numel * element_bytes(type), chunk}, block);
    return std::make_unique<FinishedWork>();
  }

  std::unique_ptr<CollectiveWork> reduce_scatter(std::byte* block, uint64_t shard_numel,
                                                 ComputeType type, uint32_t chunk) override {
    ELIXIR_CHECK(type == ComputeType::kFp32, "sums here are of FP32 values");
    const CollectiveSignature collective{CollectiveKind::kReduceScatter,
                                         shard_numel * sizeof(float), chunk};
    const std::vector<std::byte*> blocks = meeting_.bring(rank_, collective, block);
    const size_t begin = rank_ * shard_numel;
    std::vector<float> sum(shard_numel);
    for (uint32_t from = 0; from < blocks.size(); ++from) {
      const float* const shard = reinterpret_cast<const float*>(blocks[from]) + begin;
      for (size_t i = 0; i < shard_numel; ++i) sum[i] = from == 0 ? shard[i] : sum[i] + shard[i];
    }
    std::copy(sum.begin(), sum.end(), reinterpret_cast<float*>(block) + begin);
    meeting_.come(collective);
    return std::make_unique<FinishedWork>();
  }

  void broadcast(std::span<std::byte> bytes) override {
    const CollectiveSignature collective{CollectiveKind::kBroadcast, bytes.size()};
    const std::vector<std::byte*> of = meeting_.bring(rank_, collective, bytes.data());
    if (rank_ != 0) std::memcpy(bytes.data(), of[0], bytes.size());
    meeting_.come(collective);
  }

  void scatter(std::span<const float> all, std::span<float> mine, uint32_t chunk) override {
    const size_t bytes = mine.size_bytes();
    const CollectiveSignature collective{CollectiveKind::kScatter, bytes, chunk};
    // Only rank 0's is read.
    auto* const own = reinterpret_cast<std::byte*>(const_cast<float*>(all.data()));
    const std::vector<std::byte*> of = meeting_.bring(rank_, collective, own);
    std::memmove(mine.data(), of[0] + rank_ * bytes, bytes);
    meeting_.come(collective);
  }

  void gather(std::span<const float> mine, std::span<float> all) override {
    const size_t bytes = mine.size_bytes();
    const CollectiveSignature collective{CollectiveKind::kGather, bytes};
    auto* const own = reinterpret_cast<std::byte*>(const_cast<float*>(mine.data()));
    const std::vector<std::byte*> of = meeting_.bring(rank_, collective, own);
    for (uint32_t from = 0; rank_ == 0 && from < of.size(); ++from) {
      std::memmove(bytes_of(all) + from * bytes, of[from], bytes);
    }
    meeting_.come(collective);
  }

  void check() const override {}
  void report(const Status& failure) override { meeting_.report(failure); }

 private:
  static std::byte* bytes_of(std::span<float> values) {
    return reinterpret_cast<std::byte*>(values.data());
  }

  void gather_in_place(CollectiveSignature collective, std::byte* all) override {
    fill(collective, all);
  }

  // Each rank's own piece is in its place.
  void fill(CollectiveSignature collective, std::byte* all) {
    const std::vector<std::byte*> of = meeting_.bring(rank_, collective, all);
    for (uint32_t from = 0; from < of.size(); ++from) {
      const size_t begin = from * collective.bytes;
      if (from != rank_) std::memcpy(all + begin, of[from] + begin, collective.bytes);
    }
    meeting_.come(collective);
  }

  Meeting& meeting_;
  const uint32_t rank_;
};

ThreadGroups::ThreadGroups(uint32_t ranks) : meeting_(std::make_unique<Meeting>(ranks)) {}
ThreadGroups::~ThreadGroups() = default;

std::unique_ptr<CollectiveGroup> ThreadGroups::group(uint32_t rank) {
  return std::make_unique<Group>(*meeting_, rank);
}

std::vector<std::string> ThreadGroups::made() const { return meeting_->made(); }

std::vector<Status> ThreadGroups::reports() const { return meeting_->reports(); }

void run_thread_groups(uint32_t ranks, const std::function<void(CollectiveGroup&)>& body) {
  ThreadGroups groups(ranks);
  run_threads(ranks, [&](uint32_t rank) { body(*groups.group(rank)); });
}

}  // namespace elixir::test
