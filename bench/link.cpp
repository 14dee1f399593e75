// What the runtime gets out of the link to the device: chunks up into blocks (hop 6) and gradients
// down into grad slots (hop 1), each against a plain loop of copies between the same memories, in
// turn, in one run. On the CPU the "link" is memcpy.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/cli.h"
#include "base/clock.h"
#include "base/inherited.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "client/device/pinned_ranges.h"
#include "client/exchange/host_exchange.h"
#include "client/session/session.h"
#include "client/torch_device/cuda_library.h"
#include "client/torch_device/make_device.h"
#include "client/torch_device/torch_stream.h"
#include "client/train/grad_offload.h"
#include "planner/simulate/step_model.h"

namespace elixir {
namespace {

constexpr int kRounds = 9;

struct Arguments {
  std::string device = "cpu";
  uint64_t chunk_numel = uint64_t{16} << 20;
  uint32_t chunks = 16;
  uint32_t parameters = 8;  // a chunk
  bool json = false;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// One rank's session, without a model: BF16 chunks of equal parameters.
class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : shape_{.type = ComputeType::kBf16,
               .n_chunks = arguments.chunks,
               .n_parameters = arguments.chunks * arguments.parameters,
               .chunk_numel = round_up(arguments.chunk_numel, 1024)},
        numel_(shape_.chunk_numel / arguments.parameters / shm::kAlignNumel * shm::kAlignNumel),
        device_(make_device(at::Device(arguments.device), 0, {})) {
    for (uint32_t i = 0; i < arguments.chunks * arguments.parameters; ++i) {
      places_.push_back({"p" + std::to_string(i), i / arguments.parameters,
                         i % arguments.parameters * numel_, numel_});
    }
    SessionOptions options;
    options.job = "bench-link-" + std::to_string(monotonic_ns());
    options.pins_params = device_.device->pins_host_memory() ? 1 : 0;
    session_ = value_or_throw(Session::attach(shape_, places_, options));
    pinned_ = std::make_unique<PinnedRanges>(*device_.device, session_->device_ranges());
    throw_if_error(session_->protect_params());
    const uint32_t grad_blocks = device().copies_at_once() ? 0 : planner::kGradBlocks;
    exchange_ =
        std::make_unique<HostExchange>(*session_, device(), shm::StepRules{}, places_, grad_blocks);
    grad_offload_ = std::make_unique<GradOffload>(*device_.device, *exchange_, shape_, places_, 0);
    load();
    for (Block& block : blocks_) {
      block = {device().allocate(shape_.chunk_bytes(), "a block", "use --chunk-numel"),
               device().create_event(), device().create_event()};
    }
    grad_ = at::ones({static_cast<int64_t>(numel_)},
                     at::TensorOptions(at::kBFloat16).device(torch_device(*device_.device)));
    done_ = device_.device->create_event();
  }

  const std::string& device_name() const { return device_.name; }
  uint64_t bytes() const { return shape_.n_chunks * shape_.chunk_bytes(); }
  uint64_t refused_bytes() const { return pinned_->refused_bytes(); }

  double plain_up_s() {
    return timed([&] {
      for (uint32_t chunk = 0; chunk < shape_.n_chunks; ++chunk) {
        device().upload(Stream::kUpload, blocks_[chunk % 2].memory, session_->param_shard(chunk, 0),
                        shape_.chunk_bytes());
      }
      wait_for(Stream::kUpload);
    });
  }
  double runtime_up_s() {
    return timed([&] {
      for (uint32_t chunk = 0; chunk < shape_.n_chunks; ++chunk) {
        const Block& block = blocks_[chunk % 2];
        device().record(block.unused, Stream::kCompute);
        exchange_->gather(chunk, 0, block.memory, block.unused, block.filled);
        device().wait(Stream::kCompute, block.filled);
      }
      wait_for(Stream::kCompute);
    });
  }
  double plain_down_s() {
    const auto* from = static_cast<const std::byte*>(grad_.const_data_ptr());
    return timed([&] {
      for (const shm::ParameterPlace& place : places_) {
        device().download(Stream::kDownload, session_->grad_slot(place.chunk) + 2 * place.offset,
                          from, 2 * place.numel);
      }
      wait_for(Stream::kDownload);
    });
  }
  double runtime_down_s() {
    return timed([&] {
      for (uint32_t i = 0; i < places_.size(); ++i) grad_offload_->take(i, grad_, 1);
      grad_offload_->complete(1);
      grad_offload_->forget();
      wait_for(Stream::kDownload);
    });
  }

 private:
  Device& device() { return *device_.device; }
  void wait_for(Stream stream) {
    device().record(done_, stream);
    device().synchronize(done_);
  }
  template <typename Body>
  double timed(const Body& body) {
    wait_for(Stream::kCompute);
    const int64_t start_ns = monotonic_ns();
    body();
    return seconds_since(start_ns);
  }
  void load() {
    std::vector<float> values(shape_.chunk_numel, 0.5f);
    for (uint32_t chunk = 0; chunk < shape_.n_chunks; ++chunk) {
      exchange_->hand_out(chunk, values.data());
      exchange_->load(chunk, values.data());
    }
    exchange_->await_loaded(CollectiveKind::kLoad);
  }

  struct Block {
    std::byte* memory = nullptr;
    DeviceEvent unused, filled;
  };
  const shm::Shape shape_;
  const uint64_t numel_;  // of a parameter
  std::vector<shm::ParameterPlace> places_;
  PlacedDevice device_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<PinnedRanges> pinned_;
  std::unique_ptr<HostExchange> exchange_;
  std::unique_ptr<GradOffload> grad_offload_;
  Block blocks_[2];
  at::Tensor grad_;
  DeviceEvent done_;
};

nlohmann::ordered_json measure(Bench& bench) {
  std::vector<double> plain_up, up, plain_down, down;
  for (int round = 0; round < kRounds; ++round) {
    plain_up.push_back(bench.plain_up_s());
    up.push_back(bench.runtime_up_s());
    plain_down.push_back(bench.plain_down_s());
    down.push_back(bench.runtime_down_s());
  }
  const double gb = static_cast<double>(bench.bytes()) * 1e-9;
  return {{"device", bench.device_name()},
          {"bytes", bench.bytes()},
          {"not_page_locked_bytes", bench.refused_bytes()},
          {"h2d_gb_s", gb / median(up)},
          {"h2d_plain_gb_s", gb / median(plain_up)},
          {"h2d_ratio", median(plain_up) / median(up)},
          {"d2h_gb_s", gb / median(down)},
          {"d2h_plain_gb_s", gb / median(plain_down)},
          {"d2h_ratio", median(plain_down) / median(down)}};
}

int run(const Arguments& arguments) {
  at::set_num_threads(1);
  Bench bench(arguments);
  const nlohmann::ordered_json result = measure(bench);
  if (arguments.json) {
    std::cout << result.dump(2) << std::endl;
    return 0;
  }
  std::cout << fmt::format(
                   "{}: {} up and down, {} of it not page-locked\n"
                   "host to device: {:.2f} GB/s, plain copies {:.2f}: {:.3f}\n"
                   "device to host: {:.2f} GB/s, plain copies {:.2f}: {:.3f}",
                   bench.device_name(), format_bytes(bench.bytes()),
                   format_bytes(bench.refused_bytes()), result["h2d_gb_s"].get<double>(),
                   result["h2d_plain_gb_s"].get<double>(), result["h2d_ratio"].get<double>(),
                   result["d2h_gb_s"].get<double>(), result["d2h_plain_gb_s"].get<double>(),
                   result["d2h_ratio"].get<double>())
            << std::endl;
  return 0;
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) try {
  elixir::settle_inherited();
  elixir::Arguments arguments;
  CLI::App app("The runtime's copies to and from the device against a plain loop of copies",
               "link");
  elixir::init_cli(app);
  app.add_option("--device", arguments.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--chunk-numel", arguments.chunk_numel, "BF16 elements a chunk")
      ->check(CLI::Range(uint64_t{1024}, uint64_t{1} << 32));
  app.add_option("--chunks", arguments.chunks, "Chunks")->check(CLI::Range(2u, 1024u));
  app.add_option("--parameters", arguments.parameters, "Parameters a chunk")
      ->check(CLI::Range(1u, 8u));
  app.add_flag("--json", arguments.json, "One JSON object");
  const int exit_code = elixir::parse_cli(app, argc, argv);
  if (exit_code >= 0) return exit_code;
  elixir::throw_if_error(elixir::prepare_cuda(at::Device(arguments.device).type()));
  return elixir::run(arguments);
} catch (const elixir::Error& failure) {
  std::cerr << "link: " << failure.what() << std::endl;
  return failure.exit_code();
}
