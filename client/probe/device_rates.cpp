#include "client/probe/device_rates.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "client/probe/device_timer.h"
#include "client/probe/thread_team.h"
#include "client/tensors/scalar_type.h"
#include "client/torch_device/torch_stream.h"

namespace elixir::probe {
namespace {

constexpr uint64_t kSpanNumel = 1 << 20;

// Parameters and states on a device, all zeros, which takes as long as any other values.
class UpdateJob {
 public:
  UpdateJob(Device& device, uint64_t numel) : device_(device), numel_(numel), timer_(device) {
    const auto take = [&](uint64_t param_bytes) {
      return device_.allocate(param_bytes * numel, "an update to measure", "end other programs");
    };
    grads_ = take(2);
    param_ = take(2);
    master_ = take(2);
    for (float*& moment : moments_) moment = reinterpret_cast<float*>(take(sizeof(float)));
  }

  void update() {
    const optim::AdamStep step = optim::make_adam_step({}, 100, 1);
    for (uint64_t at = 0; at < numel_; at += kSpanNumel) {
      const void* const grads[] = {grads_ + 2 * at};
      device_.update(Stream::kCompute,
                     {.type = ComputeType::kBf16,
                      .grads = grads,
                      .param = param_ + 2 * at,
                      .master = master_ + 2 * at,
                      .moments = {moments_[0] + at, moments_[1] + at},
                      .numel = std::min(kSpanNumel, numel_ - at)},
                     step);
    }
    timer_.wait();
  }

 private:
  Device& device_;
  uint64_t numel_;
  DeviceTimer timer_;
  std::byte* grads_;
  std::byte* param_;
  std::byte* master_;
  float* moments_[kMaxMoments];
};

double seconds_of(const std::function<void()>& work) {
  const int64_t begin_ns = monotonic_ns();
  work();
  return seconds_since(begin_ns);
}

}  // namespace

double measure_device_updates(std::span<Device* const> devices, const DeviceRateOptions& options) {
  std::vector<UpdateJob> jobs;
  for (Device* const device : devices) jobs.emplace_back(*device, options.numel);
  std::optional<ThreadTeam> team;
  if (jobs.size() > 1) team.emplace(static_cast<int>(jobs.size()));
  const auto round_s = [&] {
    if (!team) return seconds_of([&] { jobs[0].update(); });
    return team->time([&](int thread) { jobs[static_cast<size_t>(thread)].update(); });
  };
  round_s();  // the first loads what it needs
  const double seconds = least_of(options.rounds, round_s);
  return 1e-9 * static_cast<double>(options.numel * jobs.size()) / seconds;
}

std::vector<TimedProduct> measure_products(Device& device, ComputeType type,
                                           const DeviceRateOptions& options) {
  DeviceTimer timer(device);
  const auto place = at::TensorOptions(torch_device(device)).dtype(scalar_type(type));
  // Values of every kind: a GPU that draws less power for equal ones multiplies these faster (an
  // H100 by an eighth), and no model's are.
  const at::Tensor weight = at::randn({options.width, options.width}, place);
  std::vector<TimedProduct> products;
  for (const int64_t tokens : options.tokens) {
    const at::Tensor input = at::randn({tokens, options.width}, place);
    at::Tensor output = at::empty({tokens, options.width}, place);
    const double seconds =
        timer.least_seconds(options.rounds, [&] { at::mm_out(output, input, weight); });
    const auto width = static_cast<double>(options.width);
    products.push_back(
        {static_cast<double>(tokens), 2 * static_cast<double>(tokens) * width * width / seconds});
  }
  return products;
}

}  // namespace elixir::probe
