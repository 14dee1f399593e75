#include "tests/client/exchange_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>

#include "base/throw_error.h"
#include "client/exchange/collective_exchange.h"
#include "client/exchange/host_exchange.h"
#include "client/exchange/swing_runner.h"
#include "optim_cpu/adam.h"
#include "tests/client/verdict.h"
#include "tests/support/run_threads.h"

namespace elixir::test {
namespace {

constexpr uint64_t kCaseNumel = 1280;  // a chunk's
constexpr double kPeersTimeoutS = 60;

float initial(uint32_t chunk, uint64_t i) {
  return std::sin(static_cast<float>(chunk * kCaseNumel + i));
}

// Of many magnitudes: the order of a sum shows in its bits.
float gradient(uint32_t chunk, uint32_t step, uint32_t micro_step, uint32_t rank, uint64_t i) {
  const auto place = static_cast<uint32_t>(i + 131 * chunk + 31 * step + 7 * rank);
  const float value = std::cos(static_cast<float>(place % 977 + 113 * micro_step));
  return std::ldexp(value, static_cast<int>((place + micro_step) % 12) - 6);
}

shm::Shape shape_of(const ExchangeCase& of, bool collective) {
  shm::Shape shape;
  shape.type = ComputeType::kFp32;
  if (collective) shape.exchange = shm::Exchange::kCollective;
  shape.ranks = of.ranks;
  shape.n_chunks = of.cpu_chunks;
  shape.n_gpu_chunks = of.gpu_chunks;
  shape.n_frozen_chunks = of.frozen_chunks;
  shape.n_parameters = shape.all_chunks();
  shape.n_swing_chunks = of.swing_chunks;
  shape.n_swing_lanes = of.swing_chunks > 0 ? 2 : 0;
  shape.n_spare_slots = of.spare_slots;
  shape.chunk_numel = kCaseNumel;
  return shape;
}

std::vector<shm::ParameterPlace> places_of(const shm::Shape& shape) {
  std::vector<shm::ParameterPlace> places;
  for (uint32_t chunk = 0; chunk < shape.total_chunks(); ++chunk) {
    places.push_back({"p" + std::to_string(chunk), chunk, 0, kCaseNumel});
  }
  return places;
}

uint32_t micro_steps_of(const ExchangeCase& of, uint32_t chunk, uint32_t step) {
  return of.uneven && chunk % 2 == 1 ? 1 : of.micro_steps[step - 1];
}

optim::AdamOptions options_of(const shm::StepRecord& record) {
  const auto& [lr, weight_decay, hyper] = record.groups[0];
  return {lr, hyper[kBeta1], hyper[kBeta2], hyper[kEps], weight_decay, UpdateRule::kAdamW};
}

optim::AdamStep constants_of(const shm::StepRecord& record) {
  return optim::make_adam_step(options_of(record), record.step, record.grad_scale);
}

// weights[step][chunk]: what every rank must see after the step.
using Weights = std::vector<std::vector<std::vector<float>>>;

Weights reference(const ExchangeCase& of) {
  const shm::Shape shape = shape_of(of, /*collective=*/false);
  const auto steps = static_cast<uint32_t>(of.micro_steps.size());
  std::vector<std::vector<float>> now(shape.total_chunks(), std::vector<float>(kCaseNumel));
  std::vector<std::vector<float>> first(now), second(now);
  for (uint32_t chunk = 0; chunk < shape.total_chunks(); ++chunk) {
    for (uint64_t i = 0; i < kCaseNumel; ++i) now[chunk][i] = initial(chunk, i);
    std::fill(first[chunk].begin(), first[chunk].end(), 0.0f);
    second[chunk] = first[chunk];
  }
  Weights weights = {now};
  for (uint32_t step = 1; step <= steps; ++step) {
    for (uint32_t chunk = 0; chunk < shape.all_chunks(); ++chunk) {
      std::vector<float> sum(kCaseNumel);
      for (uint64_t i = 0; i < kCaseNumel; ++i) {
        for (uint32_t micro = 1; micro <= micro_steps_of(of, chunk, step); ++micro) {
          float ranks = gradient(chunk, step, micro, 0, i);
          for (uint32_t rank = 1; rank < of.ranks; ++rank) {
            ranks = ranks + gradient(chunk, step, micro, rank, i);
          }
          sum[i] = micro == 1 ? ranks : sum[i] + ranks;
        }
      }
      optim::UpdateSpan span;
      span.type = ComputeType::kFp32;
      span.grad_sum = sum.data();
      span.param = now[chunk].data();
      span.moments[0] = first[chunk].data();
      span.moments[1] = second[chunk].data();
      span.numel = kCaseNumel;
      optim::adam_update(optim::Isa::kScalar, span, constants_of(verdict_on(step)));
    }
    weights.push_back(now);
  }
  return weights;
}

// What all ranks share.
struct Run {
  const ExchangeCase& of;
  const shm::Shape shape;
  const Weights expected = reference(of);
  const std::string job;
  const RankGroups& groups;
  std::barrier<> together{static_cast<ptrdiff_t>(of.ranks)};
  std::atomic<bool> is_ahead{false};
  std::mutex mutex{};  // guards outcome
  ExchangeOutcome outcome{};

  void compare(const float* got, uint32_t chunk, uint32_t step, uint32_t rank, const char* what) {
    const std::vector<float>& right = expected[step][chunk];
    const std::lock_guard lock(mutex);
    outcome.compared += kCaseNumel;
    if (std::memcmp(got, right.data(), kCaseNumel * sizeof(float)) == 0) return;
    outcome.wrong.push_back(
        fmt::format("rank {}: {} of chunk {} after step {}", rank, what, chunk, step));
  }
};

class DrivenRank {
 public:
  DrivenRank(Run& run, Device& device, uint32_t rank)
      : run_(run), shape_(run.shape), device_(device), rank_(rank) {
    SessionOptions options;
    options.job = run.job;
    options.rank = options.local_rank = rank;
    options.local_ranks = run.of.ranks;
    options.start_daemon = false;
    options.rules = run.of.rules;
    options.request_timeout_s = options.ranks_timeout_s = kPeersTimeoutS;
    const std::vector<shm::ParameterPlace> places = places_of(shape_);
    if (run.groups) {
      group_ = run.groups(rank);
      options.liveness = [this] { return group_->liveness(); };
    }
    session_ = value_or_throw(Session::attach(shape_, places, options));
    if (group_ != nullptr) {
      std::vector<uint32_t> order(shape_.all_chunks());
      std::iota(order.begin(), order.end(), 0u);
      exchange_ = std::make_unique<CollectiveExchange>(
          *session_, device, group_->group(), run.of.rules, places, order, run.of.grad_blocks);
    } else {
      exchange_ = std::make_unique<HostExchange>(*session_, device, run.of.rules, places,
                                                 run.of.grad_blocks);
    }
    if (shape_.n_swing_chunks > 0) {
      runner_ = std::make_unique<SwingRunner>(*session_, device, places);
    }
    for (uint32_t i = 0; i < kBlocks; ++i) {
      blocks_[i] = {device.allocate(exchange_->block_bytes(), "a block", "less"),
                    device.create_event(), device.create_event()};
    }
  }

  void load() {
    std::vector<std::vector<float>> values(shape_.total_chunks());
    const auto each = [&](const std::function<void(uint32_t)>& call) {
      for (uint32_t i = shape_.all_chunks(); i < shape_.total_chunks(); ++i) call(i);
      for (uint32_t i = 0; i < shape_.all_chunks(); ++i) call(i);
    };
    each([&](uint32_t chunk) {
      values[chunk].assign(shape_.gathered_numel(), 0);
      for (uint64_t i = 0; i < kCaseNumel; ++i) {
        values[chunk][i] = rank_ == 0 ? initial(chunk, i) : 77;  // rank 0's count
      }
      exchange_->hand_out(chunk, values[chunk].data());
      exchange_->load(chunk, values[chunk].data());
    });
    exchange_->await_loaded(CollectiveKind::kLoad);
  }

  void train() {
    const auto steps = static_cast<uint32_t>(run_.of.micro_steps.size());
    optim::ParameterSteps updates(shape_.n_parameters, shm::kMaxParamGroups);
    for (uint32_t step = 1; step <= steps; ++step) {
      look_at_parameters(step - 1);
      shm::StepRecord record = verdict_on(step);
      record.metric = rank_;
      if (run_.of.rules.immediate + run_.of.rules.early > 0) session_->open_step(record);
      for (uint32_t i = 0; i < shape_.n_parameters; ++i) session_->say_gradient(step, i, 0);
      for (uint32_t i = 0; run_.of.discards_in == step && i < run_.of.discards; ++i) {
        give(step, 1, /*as_if=*/step + 50 + i, run_.of.gathers_in_backward ? 1 : 0);
        const bool waits = run_.of.one_ahead && rank_ + 1 < run_.of.ranks;
        if (waits) run_.is_ahead.wait(false);
        exchange_->discard_grads();
      }
      for (uint32_t micro = 1; micro <= run_.of.micro_steps[step - 1]; ++micro) {
        if (step == run_.of.discards_in && micro == 2 && rank_ + 1 == run_.of.ranks) {
          run_.is_ahead = true;
          run_.is_ahead.notify_all();
        }
        give(step, micro, step);
      }
      exchange_->post(record, nullptr);
      if (runner_ != nullptr) runner_->post(step);
      updates.begin({options_of(record)}, step, record.grad_scale);
      for (uint32_t i = 0; i < shape_.n_parameters; ++i) updates.update(i, 0);
      exchange_->update_on_device(updates);
      const double mean = exchange_->mean_metric(step, rank_);
      EXPECT_EQ(mean, (run_.of.ranks - 1) / 2.0) << "step " << step;
    }
    look_at_parameters(steps);
    exchange_->synchronize(steps);
    run_.together.arrive_and_wait();
    std::vector<float> masters(shape_.gathered_numel());
    for (uint32_t chunk = 0; chunk < shape_.all_chunks(); ++chunk) {
      exchange_->read_masters(chunk, masters.data());
      run_.compare(masters.data(), chunk, steps, rank_, "masters");
    }
    run_.together.arrive_and_wait();
    if (rank_ != 0) return;
    run_.outcome.d2d_bytes = exchange_->d2d_bytes();
    run_.outcome.gathers = gathers_;
  }

 private:
  static constexpr uint32_t kBlocks = 2;  // less than there are chunks: each is used again
  struct Block {
    std::byte* memory = nullptr;
    DeviceEvent unused, filled;
  };

  // Ranks give them in different orders, where nothing is gathered meanwhile. All but the last
  // `left_out`.
  void give(uint32_t step, uint32_t micro, uint32_t as_if, uint32_t left_out = 0) {
    const bool gathers = run_.of.gathers_in_backward && step % 3 != 0;
    for (uint32_t n = 0; n + left_out < shape_.all_chunks(); ++n) {
      const bool ascends = !run_.of.gathers_in_backward && (rank_ + step) % 2 == 0;
      const uint32_t chunk = ascends ? n : shape_.all_chunks() - 1 - n;
      if (micro > micro_steps_of(run_.of, chunk, step)) continue;
      if (gathers) look_at(chunk, step - 1);
      std::vector<float> values(kCaseNumel);
      for (uint64_t i = 0; i < kCaseNumel; ++i) values[i] = gradient(chunk, as_if, micro, rank_, i);
      exchange_->begin_grads(chunk, step, micro);
      // In two pieces, as of two parameters.
      for (uint64_t from : {kCaseNumel / 2, uint64_t{0}}) {
        const GradTarget target = exchange_->grad_target(chunk);
        std::byte* const to = target.memory + from * sizeof(float);
        const auto* const source = reinterpret_cast<const std::byte*>(values.data() + from);
        const size_t bytes = kCaseNumel / 2 * sizeof(float);
        if (target.on_device) {
          device_.copy(Stream::kCompute, to, source, bytes);
        } else {
          device_.download(Stream::kDownload, to, source, bytes);
        }
      }
      exchange_->end_grads(chunk, step, micro);
    }
  }

  // Right behind the post, so that most of them are not there yet.
  void look_at_parameters(uint32_t step) {
    for (uint32_t chunk = 0; chunk < shape_.total_chunks(); ++chunk) look_at(chunk, step);
  }

  void look_at(uint32_t chunk, uint32_t step) {
    const std::byte* memory = exchange_->own_block(chunk);
    Block& block = blocks_[chunk % kBlocks];
    if (memory == nullptr) {
      exchange_->gather(chunk, step, block.memory, block.unused, block.filled);
      device_.wait(Stream::kCompute, block.filled);
      memory = block.memory;
      ++gathers_;
    }
    run_.compare(reinterpret_cast<const float*>(memory), chunk, step, rank_, "parameters");
    device_.record(block.unused, Stream::kCompute);
  }

  Run& run_;
  const shm::Shape shape_;
  Device& device_;
  const uint32_t rank_;
  std::unique_ptr<RankGroup> group_;  // null: HostExchange
  std::unique_ptr<Session> session_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<SwingRunner> runner_;  // null: no chunk swings
  Block blocks_[kBlocks];
  uint32_t gathers_ = 0;
};

template <typename SomeDevice>
ExchangeOutcome run_exchange(const ExchangeCase& of,
                             const std::vector<std::unique_ptr<SomeDevice>>& devices,
                             const RankGroups& groups) {
  static std::atomic<uint32_t> jobs{0};
  Run run{.of = of,
          .shape = shape_of(of, groups != nullptr),
          .job = "exchange-" + std::to_string(jobs++),
          .groups = groups};
  run_threads(of.ranks, [&](uint32_t rank) {
    try {
      DrivenRank driven(run, *devices[rank], rank);
      driven.load();
      driven.train();
    } catch (const std::exception& failure) {
      ADD_FAILURE() << "rank " << rank << ": " << failure.what();
      run.together.arrive_and_drop();
    }
  });
  return run.outcome;
}

}  // namespace

std::vector<ExchangeCase> swing_cases(uint32_t ranks) {
  std::vector<ExchangeCase> cases;
  for (const uint32_t swing : {1u, 3u, 5u}) {
    const ExchangeCase plain{.ranks = ranks, .cpu_chunks = 5, .swing_chunks = swing};
    cases.push_back(plain);
    cases.push_back(plain);
    cases.back().micro_steps = {1, 2, 1, 3};
    cases.push_back(plain);
    cases.back().rules.early = 1;
    cases.back().spare_slots = 5 - swing;
  }
  return cases;
}

ExchangeOutcome run_lazily(const ExchangeCase& of, const RankGroups& groups,
                           const LazyFaults& faults) {
  std::vector<std::unique_ptr<LazyDevice>> devices;
  for (uint32_t rank = 0; rank < of.ranks; ++rank) {
    devices.push_back(std::make_unique<LazyDevice>(faults));
  }
  ExchangeOutcome outcome = run_exchange(of, devices, groups);
  for (const auto& device : devices) {
    if (!device->violation().empty()) outcome.wrong.push_back(device->violation());
  }
  return outcome;
}

ExchangeOutcome run_at_once(const ExchangeCase& of, const RankGroups& groups) {
  std::vector<std::unique_ptr<HostDevice>> devices(of.ranks);
  for (auto& device : devices) device = std::make_unique<HostDevice>();
  return run_exchange(of, devices, groups);
}

}  // namespace elixir::test
