#include "client/probe/probe.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "base/host_memory.h"
#include "base/machine_load.h"
#include "base/processors.h"
#include "base/throw_error.h"
#include "client/probe/cpu_rates.h"
#include "client/probe/device_rates.h"
#include "client/probe/hardware.h"
#include "client/probe/link_traffic.h"
#include "client/probe/links.h"
#include "client/probe/operator_rates.h"
#include "client/torch_device/make_device.h"
#include "optim_cpu/adam.h"

namespace elixir::probe {
namespace {

constexpr size_t kGpuCopyBytes = 256 << 20;
constexpr size_t kBesidePieceBytes = 32 << 20;
constexpr int kBesideRounds = 3;
constexpr uint64_t kQuickNumel = uint64_t{8} << 20;

// torch's operators with so many threads while it lives.
class TorchThreads {
 public:
  explicit TorchThreads(int threads) : before_(at::get_num_threads()) {
    if (threads < before_) at::set_num_threads(threads);
  }
  ~TorchThreads() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  TorchThreads(const TorchThreads&) = delete;
  TorchThreads& operator=(const TorchThreads&) = delete;

 private:
  const int before_;
};

void say(const ProbeOptions& options, const std::string& what) {
  if (options.progress) options.progress(what);
}

void take_links(const LinkRates& rates, planner::Machine& machine) {
  machine.h2d_gb_s = rates.h2d_gb_s;
  machine.d2h_gb_s = rates.d2h_gb_s;
  machine.joint_gb_s = rates.both_gb_s;
}

// In BF16, and in FP32 as torch multiplies by default; a CPU in FP32 alone, which stands for both.
void take_matrix_rates(Device& device, const DeviceRateOptions& options,
                       planner::Machine& machine) {
  const MatrixRate fp32 = fit_matrix_rate(measure_products(device, ComputeType::kFp32, options));
  const bool cpu = device.cuda_index() < 0;
  const MatrixRate rate =
      cpu ? fp32 : fit_matrix_rate(measure_products(device, ComputeType::kBf16, options));
  machine.gpu_tflops = rate.tflops;
  machine.gpu_fp32_tflops = fp32.tflops;
}

void take_operator_rates(Device& device, const OperatorRateOptions& options,
                         planner::Machine& machine) {
  const OperatorRates rates = measure_operators(device, options);
  machine.gpu_memory_gb_s = rates.memory_gb_s;
  machine.gpu_launch_us = rates.launch_us;
  machine.gpu_attention_tflops = rates.attention;
}

// Links, the devices' update and the rates of their operators, with the CPU for a device.
void measure_cpu_devices(const ProbeOptions& options, planner::ProbedMachine& probed) {
  planner::Machine& machine = probed.machine;
  const uint32_t n = machine.gpus;
  say(options, "links to the device");
  HostLinksOptions links{.link = options.link, .devices = n};
  if (options.quick) {
    links.window_s = 0.03;
    links.rounds = 2;
    links.buffer_bytes = uint64_t{32} << 20;
  }
  take_links(measure_host_links(links), machine);

  say(options, "update, matrix products and other operators on the device");
  DeviceRateOptions rates;
  rates.numel = uint64_t{options.quick ? 4u : 16u} << 20;
  if (options.quick) {
    rates.width = 1024;
    rates.rounds = 3;
  }
  // 14 bytes a parameter, and of all devices no more than a sixteenth of what there is.
  rates.numel =
      std::clamp<uint64_t>(memory_room().available_bytes / 16 / 14 / n, 1 << 16, rates.numel);
  std::vector<std::unique_ptr<HostDevice>> devices;
  std::vector<Device*> pointers;
  for (uint32_t i = 0; i < n; ++i) {
    devices.push_back(std::make_unique<HostDevice>());
    pointers.push_back(devices.back().get());
  }
  machine.gpu_update_gparam_s = measure_device_updates(pointers, rates);
  const int processors = static_cast<int>(usable_processors().size());
  const TorchThreads threads(std::max(1, processors / static_cast<int>(n)));
  take_matrix_rates(*pointers[0], rates, machine);
  take_operator_rates(
      *pointers[0], {.numel = static_cast<int64_t>(rates.numel), .rounds = rates.rounds}, machine);

  machine.host_memory_bytes = memory_room().available_bytes / 2;
  machine.gpu_memory_bytes = machine.host_memory_bytes / n;
  probed.device = "cpu";
  probed.notes.push_back(fmt::format(
      "no GPU was used: the CPU stands for {} device{} with half of the memory "
      "available, matrix products are FP32 on {} thread{} each",
      n, n == 1 ? "" : "s", at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s"));
  probed.notes.push_back(options.link ? "the link was emulated (--link-gb-s)"
                                      : "the link is memory copies, a thread each way");
}

// elixird's update while the first device's link is busy both ways.
Status measure_beside_copies(Device& device, bool quick, planner::Machine& machine) {
  LinkTraffic traffic(device, kBesidePieceBytes);
  const Result<CpuRates> rates = measure_cpu(
      {.trainers = {machine.gpus}, .numel = quick ? kQuickNumel : 0, .rounds = kBesideRounds});
  ELIXIR_RETURN_IF_ERROR(traffic.stop());
  if (!rates.ok()) return rates.status();
  machine.cpu_update_beside_copies_gparam_s = rates->update_gparam_s.back();
  return Status();
}

// The same on GPUs.
Status measure_gpus(const ProbeOptions& options, planner::ProbedMachine& probed) {
  planner::Machine& machine = probed.machine;
  say(options, "links to the GPUs, one after another");
  const size_t copy_bytes = std::min<uint64_t>(options.quick ? kGpuCopyBytes / 4 : kGpuCopyBytes,
                                               memory_room().available_bytes / 16);
  const Result<GpuLinks> links = measure_gpu_links(options.cuda_library, options.gpus, copy_bytes);
  if (!links.ok()) return links.status();
  machine.gpus = links->gpus;
  machine.gpu_memory_bytes = links->memory_bytes;
  machine.overhead_bytes = planner::kDeviceOverheadBytes;
  machine.host_memory_bytes = memory_room().available_bytes;
  take_links(links->rates, machine);
  probed.device = fmt::format("cuda ({})", links->name);
  if (!links->pinning_error.empty()) {
    probed.notes.push_back(
        "host memory could not be page-locked, so links are slow and so will trainings be; "
        "elixirctl doctor --gpu has the remedy: " +
        links->pinning_error);
  }

  say(options, "update, matrix products and other operators on the first GPU");
  const PlacedDevice placed = make_device(c10::Device(c10::DeviceType::CUDA, 0), 0, {});
  DeviceRateOptions rates{.width = 8192, .tokens = {512, 2048, 8192}};
  rates.numel = std::min<uint64_t>(uint64_t{64} << 20, links->memory_bytes / 8 / 14);
  Device* const device = placed.device.get();
  machine.gpu_update_gparam_s = machine.gpus * measure_device_updates({&device, 1}, rates);
  take_matrix_rates(*device, rates, machine);
  take_operator_rates(*device,
                      {.numel = static_cast<int64_t>(rates.numel),
                       .sequences = 8,
                       .sequence_tokens = 1024,
                       .heads_width = 1024},
                      machine);
  say(options, "elixird's update while the first GPU's link is busy");
  ELIXIR_RETURN_IF_ERROR(measure_beside_copies(*device, options.quick, machine));
  if (machine.gpus > 1) {
    probed.notes.push_back(fmt::format(
        "links were measured one GPU after another and added up; the update is the first GPU's, "
        "times {}",
        machine.gpus));
  }
  return Status();
}

Status measure_elixird(const ProbeOptions& options, planner::ProbedMachine& probed) {
  planner::Machine& machine = probed.machine;
  CpuRateOptions rates;
  rates.trainers = {machine.gpus};
  if (options.quick) {
    rates.numel = kQuickNumel;
    rates.rounds = 3;
  } else {
    rates.trainers.resize(machine.gpus);
    std::iota(rates.trainers.begin(), rates.trainers.end(), 1u);
  }
  say(options, fmt::format("memory, and elixird's update with {}{} trainer{}",
                           rates.trainers.size() > 1 ? "1 to " : "", machine.gpus,
                           machine.gpus == 1 ? "" : "s"));
  const Result<CpuRates> measured = measure_cpu(rates);
  if (!measured.ok()) return measured.status();
  machine.dram_gb_s = measured->dram_gb_s;
  machine.numa_nodes = numa_nodes_of(usable_processors());
  machine.cpu_update_gparam_s = measured->update_gparam_s.back();
  if (!options.quick) machine.cpu_update_gparam_s_by_trainers = measured->update_gparam_s;
  return Status();
}

bool on_gpus(const ProbeOptions& options) {
  if (options.device != ProbedDevice::kAuto) return options.device == ProbedDevice::kCuda;
  return !options.link && gpu_present();
}

void add_collectives(const ProbeOptions& options, planner::ProbedMachine& probed) {
  planner::Machine& machine = probed.machine;
  if (machine.gpus == 1) return;
  std::string why = options.link ? "with a link that is emulated" : "in the short probe";
  if (options.g2g_gb_s == 0 && !options.quick && !options.link && options.collectives) {
    say(options, fmt::format("collectives among {} devices", machine.gpus));
    const Result<double> measured = options.collectives(machine.gpus, on_gpus(options));
    if (measured.ok()) {
      machine.g2g_gb_s = *measured;
      return;
    }
    why = measured.status().message();
  }
  if (options.g2g_gb_s != 0) {
    machine.g2g_gb_s = options.g2g_gb_s;
    probed.notes.push_back("collectives were not measured but given (--g2g-gb-s)");
    return;
  }
  machine.g2g_gb_s = planner::g2g_through_host(machine);
  probed.notes.push_back(fmt::format(
      "collectives were not measured ({}): half of a device's link, in a ring, as without NVLink; "
      "--g2g-gb-s says more",
      why));
}

void note_load(const MachineLoad& load, planner::ProbedMachine& probed) {
  if (load.idle()) return;
  probed.notes.push_back(fmt::format(
      "the machine was not idle before (load {:.1f} on {:.0f} processor{}): the figures may "
      "be low",
      load.busy, load.processors, load.processors == 1 ? "" : "s"));
}

Status check(const ProbeOptions& options) {
  if (options.gpus > optim::kMaxGrads) {
    return error(Code::kInvalidArgument, "--gpus {}: at most {} on one machine", options.gpus,
                 optim::kMaxGrads);
  }
  if (!(options.g2g_gb_s >= 0)) {
    return error(Code::kInvalidArgument, "--g2g-gb-s {}: more than 0 is needed", options.g2g_gb_s);
  }
  if (options.link && options.device == ProbedDevice::kCuda) {
    return error(Code::kInvalidArgument,
                 "a link is emulated on the CPU, and the device is cuda: leave --link-gb-s out, or "
                 "give --device cpu");
  }
  return Status();
}

}  // namespace

Result<planner::ProbedMachine> probe(const ProbeOptions& options) try {
  ELIXIR_RETURN_IF_ERROR(check(options));
  planner::ProbedMachine probed;
  probed.machine.name = host_name();
  probed.hardware = hardware_of(on_gpus(options));
  const MachineLoad load = load_of_last_minute();
  if (on_gpus(options)) {
    ELIXIR_RETURN_IF_ERROR(measure_gpus(options, probed));
  } else {
    probed.machine.gpus = std::max(options.gpus, 1u);
    measure_cpu_devices(options, probed);
  }
  ELIXIR_RETURN_IF_ERROR(measure_elixird(options, probed));
  add_collectives(options, probed);
  note_load(load, probed);
  ELIXIR_RETURN_IF_ERROR(planner::check_machine(probed.machine));
  return probed;
} catch (const Error& failure) {
  return Status(failure.code(), failure.what());
} catch (const std::exception& failure) {  // torch's
  return error(Code::kInternal, "the machine could not be measured: {}", failure.what());
}

Result<planner::Machine> probe_machine(const ProbeOptions& options) {
  Result<planner::ProbedMachine> probed = probe(options);
  if (!probed.ok()) return probed.status();
  return std::move(probed->machine);
}

}  // namespace elixir::probe
