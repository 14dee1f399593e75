#include "client/collectives/connect_group.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "client/collectives/device_works.h"
#include "client/collectives/gloo_transport.h"
#include "client/collectives/sum_shards.h"
#include "client/ranks/seconds_setting.h"
#include "client/tensors/scalar_type.h"
#include "client/tensors/torch_failure.h"
#include "client/torch_device/torch_stream.h"

namespace elixir {

CollectiveOptions::CollectiveOptions() = default;
CollectiveOptions::CollectiveOptions(const CollectiveOptions&) = default;
CollectiveOptions& CollectiveOptions::operator=(const CollectiveOptions&) = default;
CollectiveOptions::~CollectiveOptions() = default;

namespace {

// At the end a rank waits so long for collectives that its device still makes.
constexpr double kFinishS = 10;
constexpr std::chrono::milliseconds kFinishPoll{1};

struct Scratch {
  std::unique_ptr<std::byte[]> memory;
  size_t bytes = 0;
};

class HostGather final : public CollectiveWork {
 public:
  HostGather(GlooTransport& transport, CollectiveSignature collective, std::byte* block)
      : transfers_(transport, collective) {
    transfers_.gather(block, collective.bytes);
  }
  void wait() override { transfers_.wait(); }

 private:
  Transfers transfers_;
};

class HostReduce final : public CollectiveWork {
 public:
  // `others`: size - 1 shards for what comes from the other ranks; given back to `pool`.
  HostReduce(GlooTransport& transport, CollectiveSignature collective, std::byte* block,
             uint64_t shard_numel, ComputeType type, Scratch others, std::vector<Scratch>& pool)
      : own_(block + transport.rank() * shard_numel * element_bytes(type)),
        shard_numel_(shard_numel),
        type_(type),
        others_(std::move(others)),
        pool_(pool),
        transfers_(transport, collective) {
    const size_t bytes = collective.bytes;
    const uint32_t rank = transport.rank(), size = transport.size();
    for (uint32_t from = 0; from < size; ++from) {
      const size_t place = from < rank ? from : from - 1;
      sources_.push_back(from == rank ? own_ : others_.memory.get() + place * bytes);
    }
    for (uint32_t i = 1; i < size; ++i) {
      const uint32_t from = (rank + size - i) % size;
      transfers_.receive(from, const_cast<std::byte*>(sources_[from]), bytes);
    }
    for (uint32_t i = 1; i < size; ++i) {
      const uint32_t to = (rank + i) % size;
      transfers_.send(to, block + to * bytes, bytes);
    }
  }
  void wait() override {
    transfers_.wait();
    if (others_.memory == nullptr) return;  // waited for before
    sum_in_order(sources_, own_, shard_numel_, type_);
    pool_.push_back(std::move(others_));
  }

 private:
  std::byte* const own_;
  const uint64_t shard_numel_;
  const ComputeType type_;
  std::vector<const std::byte*> sources_;  // by rank
  Scratch others_;
  std::vector<Scratch>& pool_;
  Transfers transfers_;  // ends first: it writes to others_
};

class DeviceWork final : public CollectiveWork {
 public:
  DeviceWork(GlooTransport& transport, const char* what, c10::intrusive_ptr<c10d::Work> work)
      : transport_(transport), what_(what), work_(std::move(work)) {}
  void wait() override {
    throw_if_error(transport_.status());
    try {
      work_->wait();
    } catch (const std::exception& failure) {
      throw Error(transport_.explain(Code::kInternal, what_, failure_text(failure)));
    }
  }

 private:
  GlooTransport& transport_;
  const char* const what_;
  const c10::intrusive_ptr<c10d::Work> work_;
};

at::Tensor tensor_at(std::byte* memory, uint64_t numel, ComputeType type, c10::Device device) {
  return at::for_blob(memory, {static_cast<int64_t>(numel)})
      .options(at::TensorOptions().dtype(scalar_type(type)).device(device))
      .target_device(device)
      .make_tensor();
}

template <typename T>
const std::byte* bytes_of(std::span<T> values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
std::byte* writable_bytes_of(std::span<float> values) {
  return reinterpret_cast<std::byte*>(values.data());
}

// LibTorch's current stream: collectives of c10d begin behind it, and end before whatever it gets
// after Work::wait().
class StreamOfTorch final : public EnteredStream {
 public:
  explicit StreamOfTorch(const TorchStream& stream) : guard_(torch_stream(stream)) {}

 private:
  const c10::StreamGuard guard_;
};

class ConnectedGroup final : public CollectiveGroup {
 public:
  ConnectedGroup(const Rendezvous& rendezvous, const CollectiveOptions& options,
                 std::unique_ptr<GlooTransport> transport, double timeout_s)
      : rendezvous_(rendezvous), options_(options), transport_(std::move(transport)) {
    if (options_.data) works_ = std::make_unique<DeviceWorks>(options_.device, timeout_s);
    watch_over();
  }
  ~ConnectedGroup() override;
  Status connect_backend();

  uint32_t rank() const override { return rendezvous_.rank(); }
  const std::vector<Member>& members() const override { return rendezvous_.members(); }
  bool on_host() const override { return options_.data == nullptr; }
  std::unique_ptr<EnteredStream> enter(const std::optional<TorchStream>& stream) override;
  std::unique_ptr<CollectiveWork> all_gather(std::byte* block, uint64_t shard_numel,
                                             ComputeType type, uint32_t chunk) override;
  std::unique_ptr<CollectiveWork> reduce_scatter(std::byte* block, uint64_t shard_numel,
                                                 ComputeType type, uint32_t chunk) override;
  void broadcast(std::span<std::byte> bytes) override;
  void scatter(std::span<const float> all, std::span<float> mine, uint32_t chunk) override;
  void gather(std::span<const float> mine, std::span<float> all) override;
  void check() const override { throw_if_error(transport_->status()); }
  void report(const Status& failure) override { rendezvous_.watch().report(failure); }

 private:
  void gather_in_place(CollectiveSignature collective, std::byte* all) override {
    HostGather(*transport_, collective, all).wait();
  }
  Scratch take_scratch(size_t bytes);
  template <typename Call>
  std::unique_ptr<CollectiveWork> call_backend(const char* what, CollectiveSignature collective,
                                               const Call& call);
  void watch_over();
  bool finish_works();
  void end_backend();

  const Rendezvous& rendezvous_;
  const CollectiveOptions options_;
  const std::unique_ptr<GlooTransport> transport_;
  std::unique_ptr<DeviceWorks> works_;  // null: blocks lie on the host
  // Memory for other ranks' gradients, kept from one reduce-scatter to the next.
  std::vector<Scratch> free_scratch_;

  bool connected_ = false;      // the backend
  bool backend_ended_ = false;  // written by the watch's callback
  const int exceptions_at_start_ = std::uncaught_exceptions();
};

Scratch ConnectedGroup::take_scratch(size_t bytes) {
  while (!free_scratch_.empty()) {
    Scratch scratch = std::move(free_scratch_.back());
    free_scratch_.pop_back();
    if (scratch.bytes >= bytes) return scratch;
  }
  return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
}

template <typename Call>
std::unique_ptr<CollectiveWork> ConnectedGroup::call_backend(const char* what,
                                                             CollectiveSignature collective,
                                                             const Call& call) {
  throw_if_error(transport_->status());
  try {
    c10::intrusive_ptr<c10d::Work> work = call();
    works_->add(what, work, collective);
    return std::make_unique<DeviceWork>(*transport_, what, std::move(work));
  } catch (const std::exception& failure) {
    throw Error(transport_->explain(Code::kInternal, what, failure_text(failure)));
  }
}

// A fault ends what is under way; NCCL's collectives that fail are a fault.
void ConnectedGroup::watch_over() {
  PeerWatch& watch = rendezvous_.watch();
  watch.set_callback([this](const Status&) {
    transport_->abort();
    try {
      if (options_.data) options_.data->abort();
    } catch (const std::exception& failure) {  // NCCL's, of a device that is lost: it has ended
      log_warn("collectives_abort", "text=\"{}\"", failure_text(failure));
    }
    backend_ended_ = true;
  });
  if (!works_) return;
  watch.set_health([this, &watch] {
    const Status status = works_->ask();
    const DeviceWorks::Progress progress = works_->progress();
    watch.set_on_device(progress.made, progress.oldest, progress.of_oldest);
    return status;
  });
}

// NCCL's making of a communicator cannot be broken off, and waits for a rank that never comes: so
// it is made when all have come, and not by the first collective.
Status ConnectedGroup::connect_backend() {
  if (!options_.data || size() == 1) return Status();  // one rank makes no collectives
  ELIXIR_RETURN_IF_ERROR(rendezvous_.meet("nccl"));
  try {
    options_.data->eagerConnectSingleDevice(options_.device);
  } catch (const std::exception& failure) {
    return transport_->explain(Code::kInternal, "the communicator of the devices",
                               failure_text(failure));
  }
  connected_ = true;
  return Status();
}

// False: something failed, or does not end.
bool ConnectedGroup::finish_works() {
  const int64_t start_ns = monotonic_ns();
  for (;;) {
    if (!transport_->status().ok() || !works_->ask().ok()) return false;
    if (works_->all_done()) return true;
    if (seconds_since(start_ns) > kFinishS) return false;
    std::this_thread::sleep_for(kFinishPoll);
  }
}

// torch warns of a backend that was neither shut down nor aborted. To shut it down waits for its
// collectives, so first they must be done.
void ConnectedGroup::end_backend() {
  if (!options_.data || backend_ended_) return;
  try {
    if (std::uncaught_exceptions() == exceptions_at_start_ && connected_ && finish_works()) {
      options_.data->shutdown();
    } else {
      options_.data->abort();
    }
  } catch (const std::exception& failure) {
    log_warn("nccl_end", "text=\"{}\"", failure_text(failure));
  }
}

ConnectedGroup::~ConnectedGroup() {
  PeerWatch& watch = rendezvous_.watch();
  watch.set_health({});
  watch.set_callback({});
  end_backend();
}

std::unique_ptr<EnteredStream> ConnectedGroup::enter(const std::optional<TorchStream>& stream) {
  return stream ? std::make_unique<StreamOfTorch>(*stream) : nullptr;
}

std::unique_ptr<CollectiveWork> ConnectedGroup::all_gather(std::byte* block, uint64_t shard_numel,
                                                           ComputeType type, uint32_t chunk) {
  const size_t bytes = shard_numel * element_bytes(type);
  const CollectiveSignature collective{CollectiveKind::kAllGather, bytes, chunk};
  if (size() == 1) return std::make_unique<FinishedWork>();
  if (on_host()) return std::make_unique<HostGather>(*transport_, collective, block);
  const c10::Device device = options_.device;
  return call_backend("an all-gather on the device", collective, [&] {
    at::Tensor all = tensor_at(block, size() * shard_numel, type, device);
    at::Tensor mine = tensor_at(block + rank() * bytes, shard_numel, type, device);
    return options_.data->_allgather_base(all, mine);
  });
}

std::unique_ptr<CollectiveWork> ConnectedGroup::reduce_scatter(std::byte* block,
                                                               uint64_t shard_numel,
                                                               ComputeType type, uint32_t chunk) {
  const size_t bytes = shard_numel * element_bytes(type);
  const CollectiveSignature collective{CollectiveKind::kReduceScatter, bytes, chunk};
  if (size() == 1) return std::make_unique<FinishedWork>();
  if (on_host()) {
    return std::make_unique<HostReduce>(*transport_, collective, block, shard_numel, type,
                                        take_scratch((size() - 1) * bytes), free_scratch_);
  }
  const c10::Device device = options_.device;
  return call_backend("a reduce-scatter on the device", collective, [&] {
    at::Tensor all = tensor_at(block, size() * shard_numel, type, device);
    at::Tensor mine = tensor_at(block + rank() * bytes, shard_numel, type, device);
    return options_.data->_reduce_scatter_base(mine, all);
  });
}

void ConnectedGroup::broadcast(std::span<std::byte> bytes) {
  Transfers transfers(*transport_, {CollectiveKind::kBroadcast, bytes.size()});
  if (rank() != 0) transfers.receive(0, bytes.data(), bytes.size());
  for (uint32_t to = 1; rank() == 0 && to < size(); ++to) {
    transfers.send(to, bytes.data(), bytes.size());
  }
  transfers.wait();
}

void ConnectedGroup::scatter(std::span<const float> all, std::span<float> mine, uint32_t chunk) {
  ELIXIR_CHECK(rank() != 0 || all.size() >= size() * mine.size(),
               "{} values for {} ranks with {} each", all.size(), size(), mine.size());
  const size_t bytes = mine.size_bytes();
  Transfers transfers(*transport_, {CollectiveKind::kScatter, bytes, chunk});
  if (rank() != 0) transfers.receive(0, writable_bytes_of(mine), bytes);
  for (uint32_t to = 1; rank() == 0 && to < size(); ++to) {
    transfers.send(to, bytes_of(all) + to * bytes, bytes);
  }
  if (rank() == 0) std::memmove(mine.data(), all.data(), bytes);
  transfers.wait();
}

void ConnectedGroup::gather(std::span<const float> mine, std::span<float> all) {
  ELIXIR_CHECK(rank() != 0 || all.size() >= size() * mine.size(),
               "room for {} values of {} ranks with {} each", all.size(), size(), mine.size());
  const size_t bytes = mine.size_bytes();
  Transfers transfers(*transport_, {CollectiveKind::kGather, bytes});
  if (rank() != 0) transfers.send(0, bytes_of(mine), bytes);
  for (uint32_t from = 1; rank() == 0 && from < size(); ++from) {
    transfers.receive(from, writable_bytes_of(all) + from * bytes, bytes);
  }
  if (rank() == 0) std::memmove(all.data(), mine.data(), bytes);
  transfers.wait();
}

}  // namespace

Result<std::unique_ptr<CollectiveGroup>> connect_group(const Rendezvous& rendezvous,
                                                       const CollectiveOptions& options) {
  const Result<double> timeout_s = seconds_setting(options.timeout_s, "ELIXIR_COLLECTIVE_TIMEOUT_S",
                                                   CollectiveGroup::kDefaultTimeoutSeconds);
  if (!timeout_s.ok()) return timeout_s.status();
  Result<std::unique_ptr<GlooTransport>> transport = GlooTransport::connect(rendezvous, *timeout_s);
  if (!transport.ok()) return transport.status();
  auto group =
      std::make_unique<ConnectedGroup>(rendezvous, options, std::move(*transport), *timeout_s);
  ELIXIR_RETURN_IF_ERROR(group->connect_backend());
  return std::unique_ptr<CollectiveGroup>(std::move(group));
}

}  // namespace elixir
