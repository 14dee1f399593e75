// elixird's TOML file, which is read from a path.

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/check.h"
#include "base/fd.h"
#include "daemon/config.h"
#include "shm/layout.h"
#include "shm/shape.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  static const UniqueFd file(::memfd_create("config", MFD_CLOEXEC));
  static const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  ELIXIR_CHECK(::ftruncate(file.get(), 0) == 0, "ftruncate");
  const auto wrote = ::pwrite(file.get(), data, size, 0);
  ELIXIR_CHECK(wrote == static_cast<ssize_t>(size), "pwrite");
  daemon::Config config;
  const Status applied = daemon::apply_toml(path, &config);
  ELIXIR_CHECK(applied.ok() || applied.code() == Code::kInvalidArgument, "{}", applied.message());
  if (!applied.ok() || !daemon::check_config(config).ok()) return 0;
  ELIXIR_CHECK(config.workers <= shm::kMaxWorkers && config.slice_numel > 0, "limits");
  ELIXIR_CHECK(config.exit_when_idle >= 0 && config.attach_timeout_s > 0, "times");
  return 0;
}
