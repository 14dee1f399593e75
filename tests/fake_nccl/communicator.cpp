#include "tests/fake_nccl/communicator.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tests/fake_nccl/reduce.h"
#include "tests/fake_nccl/settings.h"

namespace fake_nccl {
namespace {

const char* const kWorkNames[] = {"", "nccl all-gather", "nccl reduce-scatter", "nccl all-reduce"};

std::mutex last_error_mutex;
std::string last_error_text;  // guarded by last_error_mutex

bool is_gone(int pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

}  // namespace

void set_last_error(const std::string& text) {
  const std::lock_guard lock(last_error_mutex);
  last_error_text = "fake NCCL: " + text;
  std::fprintf(stderr, "%s\n", last_error_text.c_str());
}

const char* last_error() {
  static thread_local std::string text;
  const std::lock_guard lock(last_error_mutex);
  text = last_error_text;
  return text.c_str();
}

struct Communicator::Batch {
  std::shared_ptr<Communicator> communicator;
  std::vector<Call> calls;
  uint64_t number;  // among the communicator's
  Injected injected;
};

// ---- the start ----

ncclResult_t Communicator::join(const ncclUniqueId& id, int ranks, int rank,
                                std::shared_ptr<Communicator>* result) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  std::unique_ptr<Wire> wire = Wire::open(id);
  if (wire == nullptr) {
    set_last_error("the process that made the unique id is gone");
    return ncclRemoteError;
  }
  std::shared_ptr<Communicator> made(new Communicator(std::move(wire), ranks, rank, device));
  const ncclResult_t met = made->meet();
  if (met == ncclSuccess) *result = std::move(made);
  return met;
}

ncclResult_t Communicator::meet() {
  Shared& shared = wire_->shared();
  uint32_t expected = 0;
  if (!shared.ranks.compare_exchange_strong(expected, ranks_) &&
      expected != static_cast<uint32_t>(ranks_)) {
    set_last_error("ranks of one unique id disagree on their number");
    return ncclInvalidArgument;
  }
  char address[sizeof SharedRank::device] = "";
  if (cudaDeviceGetPCIBusId(address, sizeof address, device_) != cudaSuccess) {
    return ncclUnhandledCudaError;
  }
  SharedRank& own = shared.rank[rank_];
  int32_t nobody = 0;
  std::memcpy(own.device, address, sizeof address);
  if (!own.pid.compare_exchange_strong(nobody, getpid())) {
    set_last_error("two processes are rank " + std::to_string(rank_));
    return ncclInvalidUsage;
  }
  wire_->raise_pulse();
  return await_others();
}

// NCCL's ranks hold connections to each other by now: the death of one that had come is felt, one
// that never comes is waited for.
ncclResult_t Communicator::await_others() {
  Shared& shared = wire_->shared();
  for (int other = 0; other < ranks_; ++other) {
    for (;;) {
      const uint32_t pulse = wire_->pulse();
      if (shared.rank[other].pid.load() != 0) break;
      for (int came = 0; came < ranks_; ++came) {
        const int pid = shared.rank[came].pid.load();
        if (pid == 0 || !is_gone(pid)) continue;
        set_last_error("rank " + std::to_string(came) + " died while ranks met");
        return ncclRemoteError;
      }
      wire_->await_change(pulse);
    }
    if (other != rank_ && std::strcmp(shared.rank[other].device, shared.rank[rank_].device) == 0) {
      set_last_error("Duplicate GPU detected: rank " + std::to_string(rank_) + " and rank " +
                     std::to_string(other) + " both on CUDA device " + shared.rank[other].device);
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

// ---- collectives ----

ncclResult_t Communicator::check(const Call& call) const {
  const auto on_device = [&](const void* memory, size_t bytes) {
    return bytes == 0 || fake_cuda_device_of(memory) == device_;
  };
  if (element_bytes(call.type) == 0 ||
      (call.sums() && (call.op != ncclSum || !is_summed(call.type)))) {
    set_last_error(std::string("arguments of ") + name_of(call.kind));
    return ncclInvalidArgument;
  }
  if (!on_device(call.send, call.sent_bytes(ranks_)) ||
      !on_device(call.receive, call.received_bytes(ranks_))) {
    set_last_error(std::string(name_of(call.kind)) + " of memory that is not on device " +
                   std::to_string(device_));
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

ncclResult_t Communicator::enqueue(const std::vector<Call>& calls, cudaStream_t stream) {
  std::vector<FakeCudaAccess> accesses;
  double from_others = 0;  // bytes
  const Injected injected = inject(rank_);
  if (injected.at_call) return injected.result;
  for (const Call& call : calls) {
    if (const ncclResult_t result = check(call); result != ncclSuccess) return result;
    accesses.push_back({call.send, call.sent_bytes(ranks_), 0});
    accesses.push_back({call.receive, call.received_bytes(ranks_), 1});
    const size_t whole = std::max(call.sent_bytes(ranks_), call.received_bytes(ranks_));
    from_others += static_cast<double>(whole) * (ranks_ - 1) / ranks_;
  }
  auto* const batch = new Batch{shared_from_this(), calls, 0, injected};
  {
    const std::lock_guard lock(mutex_);
    batch->number = enqueued_++;
  }
  FakeCudaWork work{};
  work.name = kWorkNames[static_cast<size_t>(calls.front().kind)];
  work.duration_ns = duration_ns(from_others);
  work.accesses = accesses.data();
  work.n_accesses = accesses.size();
  work.argument = batch;
  work.run = [](void* argument) {
    const std::unique_ptr<Batch> owned(static_cast<Batch*>(argument));
    owned->communicator->run(*owned);
  };
  fake_cuda_count(work.name, 1);
  if (fake_cuda_enqueue(stream, &work) == cudaSuccess) return ncclSuccess;
  const std::unique_ptr<Batch> unused(batch);
  await_turn(batch->number);
  end_turn();
  return ncclUnhandledCudaError;
}

void Communicator::run(Batch& batch) {
  if (await_turn(batch.number)) {
    if (batch.injected.here) {
      wire_->shared().failed_rank.store(static_cast<uint32_t>(rank_) + 1);
      wire_->raise_pulse();
      fail(batch.injected.result, std::string("an error was injected into ") +
                                      name_of(batch.calls.front().kind) + " on rank " +
                                      std::to_string(rank_));
    } else {
      make(batch.calls);
    }
  }
  end_turn();
}

// False when the communicator has been aborted by then.
bool Communicator::await_turn(uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ == number; });
  running_ = !aborted_;
  return running_;
}

void Communicator::end_turn() {
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
    ++ended_;
  }
  changed_.notify_all();
}

void Communicator::make(const std::vector<Call>& calls) {
  Transfers transfers;
  std::vector<std::unique_ptr<RunningCall>> running;
  for (const Call& call : calls) {
    running.push_back(std::make_unique<RunningCall>(call, rank_, ranks_, transfers));
  }
  if (!advance_to_the_end(transfers)) return;
  for (const auto& call : running) call->finish();
}

bool Communicator::advance_to_the_end(Transfers& transfers) {
  for (;;) {
    const uint32_t pulse = wire_->pulse();
    if (aborted_) return false;
    const bool moved = transfers.advance(*wire_, rank_);
    if (!transfers.mismatch().empty()) {
      fail(mismatches_hang() ? ncclSuccess : ncclInvalidUsage,
           "ranks make different collectives: " + transfers.mismatch());
      return false;
    }
    if (transfers.done()) return true;
    if (moved) continue;
    if (tells_peers() && wire_->shared().failed_rank.load() != 0) {
      fail(ncclRemoteError, "another rank has failed");
      return false;
    }
    wire_->await_change(pulse);
  }
}

void Communicator::fail(ncclResult_t result, const std::string& text) {
  set_last_error(text);
  error_.store(result);
  while (!aborted_) wire_->await_change(wire_->pulse());
}

// ---- the end ----

void Communicator::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ == enqueued_ || aborted_; });
}

void Communicator::abort() {
  std::unique_lock lock(mutex_);
  aborted_ = true;
  wire_->raise_pulse();
  changed_.notify_all();
  changed_.wait(lock, [&] { return !running_; });
}

}  // namespace fake_nccl
