#include "tests/client/paced_trainer.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "base/throw_error.h"
#include "client/device/paced_device.h"
#include "client/exchange/swing_runner.h"
#include "optim_cpu/adam.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/patience.h"

namespace elixir::test {
namespace {

constexpr int kWarmUp = 2, kSteps = 7;
constexpr ComputeType kType = ComputeType::kBf16;

testing::FakeModel model_of(const PacedTraining& of) {
  testing::FakeModel model = testing::make_model(kType, 1, of.chunks, of.chunk_numel);
  model.shape.n_swing_chunks = of.swinging();
  model.shape.n_swing_lanes = of.swinging() > 0 ? planner::kSwingLanes : 0;
  return model;
}

class Trainer {
 public:
  explicit Trainer(const PacedTraining& of)
      : of_(of), model_(model_of(of)), device_({.link = of.link, .operator_us = of.operator_us}) {
    static uint32_t jobs = 0;
    SessionOptions options;
    options.job = fmt::format("paced-{}", ++jobs);
    options.start_daemon = false;
    options.request_timeout_s = options.ranks_timeout_s = kPatienceS;
    session_ = value_or_throw(Session::attach(model_.shape, model_.places, options));
    if (of.swinging() > 0) {
      runner_ = std::make_unique<SwingRunner>(*session_, device_, model_.places);
    }
    const auto allocate = [&] {
      return device_.allocate(model_.shape.chunk_bytes(), "a block", "fewer");
    };
    for (uint32_t i = 0; i < of.chunks; ++i) {
      blocks_.push_back({allocate(), device_.create_event()});
      grads_down_.push_back(device_.create_event());
    }
    for (Block& block : grad_blocks_) block = {allocate(), device_.create_event()};
    made_ = device_.create_event();
    const auto values = testing::initial_values(model_);
    for (uint32_t chunk = 0; chunk < of.chunks; ++chunk) {
      throw_if_error(session_->load_chunk(chunk, values[chunk].data()));
    }
    throw_if_error(session_->await_loaded());
  }

  PacedSteps train() {
    std::vector<double> steps_s, rates;
    int64_t begin_ns = 0;
    for (uint32_t step = 1; step <= kWarmUp + kSteps; ++step) {
      gathered_ = 0;
      for (uint32_t i = 0; i < of_.chunks; ++i) forward(i, step);
      for (uint32_t i = of_.chunks; i-- > 0;) backward(i, step);
      post(step);
      const double step_s = seconds_since(begin_ns);
      begin_ns = monotonic_ns();
      if (step <= kWarmUp) continue;
      steps_s.push_back(step_s);
      const shm::UpdateResult update = session_->last_finished();  // of the step before
      const double numel =
          static_cast<double>(of_.chunks - of_.swinging()) * static_cast<double>(of_.chunk_numel);
      rates.push_back(numel / (1e-9 * static_cast<double>(update.update_ns)));
    }
    throw_if_error(session_->wait_finished(kWarmUp + kSteps));
    return {"", median(steps_s), median(rates)};
  }

  // In one step whose gradients are zero.
  double longest_gather_s(size_t bytes, int64_t between_ns) {
    for (uint32_t i = 0; i < model_.shape.n_parameters; ++i) session_->say_gradient(1, i, 0);
    post(1);
    double longest_s = 0;
    const int64_t start_ns = monotonic_ns();
    while (session_->last_finished().step < 1 && seconds_since(start_ns) < kPatienceS) {
      const int64_t begin_ns = monotonic_ns();
      device_.upload(Stream::kUpload, blocks_[0].memory, session_->param_shard(0, 0), bytes);
      device_.record(blocks_[0].event, Stream::kUpload);
      device_.synchronize(blocks_[0].event);
      longest_s = std::max(longest_s, seconds_since(begin_ns));
      sleep_until_ns(monotonic_ns() + between_ns);
    }
    return longest_s;
  }

 private:
  struct Block {
    std::byte* memory = nullptr;
    DeviceEvent event;  // it has come, or has left
  };

  static double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  // The chunks up to the i-th, and those behind it that are updated already.
  void gather(uint32_t i, uint32_t step) {
    for (; gathered_ < of_.chunks; ++gathered_) {
      const uint32_t chunk = of_.chunk_at(gathered_);
      if (gathered_ > i && session_->param_step(chunk) < step - 1) return;
      throw_if_error(session_->wait_param(chunk, step - 1));
      device_.upload(Stream::kUpload, blocks_[gathered_].memory, session_->param_shard(chunk, 0),
                     model_.shape.chunk_bytes());
      device_.record(blocks_[gathered_].event, Stream::kUpload);
    }
  }

  void forward(uint32_t i, uint32_t step) {
    gather(i, step);
    device_.wait(Stream::kCompute, blocks_[i].event);
    device_.end_operator();
  }

  void backward(uint32_t i, uint32_t step) {
    const uint32_t chunk = of_.chunk_at(i);
    device_.end_operator();
    Block& block = grad_blocks_[i % planner::kGradBlocks];
    device_.wait(Stream::kCompute, block.event);
    device_.record(made_, Stream::kCompute);
    device_.wait(Stream::kDownload, made_);
    device_.download(Stream::kDownload, session_->grad_slot(chunk), block.memory,
                     model_.shape.chunk_bytes());
    device_.record(block.event, Stream::kDownload);
    device_.record(grads_down_[i], Stream::kDownload);
    for (uint32_t place = 2 * chunk; place < 2 * chunk + 2; ++place) {
      session_->say_gradient(step, place, 0);
    }
  }

  void post(uint32_t step) {
    for (uint32_t i = of_.chunks; i-- > 0;) {
      device_.synchronize(grads_down_[i]);
      throw_if_error(session_->publish_grad(
          of_.chunk_at(i), {.step = step, .micro_step = 1, .discards = 0, .to_sum = false}));
    }
    throw_if_error(session_->post_step(testing::make_record(step, 1)));
    if (runner_ != nullptr) runner_->post(step);
    throw_if_error(session_->wait_committed(step).status());
    session_->forget_gradients(step + 1);
  }

  const PacedTraining of_;
  const testing::FakeModel model_;
  PacedDevice device_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<SwingRunner> runner_;
  std::vector<Block> blocks_;
  std::vector<DeviceEvent> grads_down_;
  Block grad_blocks_[planner::kGradBlocks];
  DeviceEvent made_;
  uint32_t gathered_ = 0;
};

}  // namespace

uint32_t PacedTraining::chunk_at(uint32_t i) const {
  if (stride == 0) return i;
  const uint32_t before = i / stride;  // swing chunks
  return (i + 1) % stride == 0 ? chunks - swinging() + before : i - before;
}

PacedSteps train_paced(const PacedTraining& of) {
  try {
    return Trainer(of).train();
  } catch (const Error& failure) {
    return {.wrong = failure.what()};
  }
}

planner::StepModel step_model_of(const PacedTraining& of, const PacedSteps& measured) {
  using planner::Placement;
  planner::StepModel model;
  model.chunk_numel = of.chunk_numel;
  model.state_bytes = static_cast<uint32_t>(master_bytes(kType) + 2 * sizeof(float));
  const double operator_s = 1e-6 * of.operator_us;
  for (uint32_t i = 0; i < of.chunks; ++i) {
    const bool swings = of.stride > 0 && (i + 1) % of.stride == 0;
    model.chunks.push_back({swings ? Placement::kSwing : Placement::kCpu, of.chunk_numel});
    model.operators.push_back({operator_s, {i}});
  }
  model.backward_begin = of.chunks;
  for (uint32_t i = of.chunks; i-- > 0;) {
    model.operators.push_back({operator_s, {i}, {i}, {of.chunk_numel}});
  }
  model.rcache_blocks = of.chunks;
  model.rates = {.h2d_bytes = 1e9 * of.link.h2d_gb_s,
                 .d2h_bytes = 1e9 * of.link.d2h_gb_s,
                 .joint_bytes = 1e9 * of.link.joint_gb_s,
                 .cpu_update_numel = measured.cpu_update_numel_s,
                 .gpu_update_numel = device_update_numel_s(of.chunk_numel),
                 .copy_latency_s = 1e-6 * of.link.latency_us};
  model.runtime.host_ahead = false;
  model.runtime.grad_blocks = planner::kGradBlocks;
  return model;
}

double longest_gather_s(const HostLink& link) {
  constexpr size_t kBytes = 64 << 10;
  constexpr int64_t kBetweenNs = 2'000'000;
  PacedTraining of{.link = link, .stride = 1, .chunks = 4, .chunk_numel = uint64_t{1} << 23};
  try {
    Trainer trainer(of);
    return trainer.longest_gather_s(kBytes, kBetweenNs);
  } catch (const Error&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
}

double device_update_numel_s(uint64_t numel) {
  std::vector<std::byte> param(numel * 2), master(numel * 2), grad(numel * 2);
  std::vector<float> first(numel), second(numel);
  const void* const grads[] = {grad.data()};
  optim::UpdateSpan span;
  span.type = kType;
  span.grads = grads;
  span.n_grads = 1;
  span.param = param.data();
  span.master = master.data();
  span.moments[0] = first.data();
  span.moments[1] = second.data();
  span.numel = numel;
  const optim::AdamStep step = optim::make_adam_step({}, 1, 1);
  double best_s = 1e9;
  for (int i = 0; i < 5; ++i) {
    const int64_t begin_ns = monotonic_ns();
    optim::adam_update(optim::best_isa(), span, step);
    best_s = std::min(best_s, seconds_since(begin_ns));
  }
  return static_cast<double>(numel) / best_s;
}

}  // namespace elixir::test
