#include "base/gpu.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

class GpuTest : public ::testing::Test {
 protected:
  GpuTest() {
    const char* visible = ::getenv("CUDA_VISIBLE_DEVICES");
    if (visible != nullptr) before_ = visible;
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  ~GpuTest() override {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    if (!before_.empty()) ::setenv("CUDA_VISIBLE_DEVICES", before_.c_str(), 1);
  }
  std::string before_;
  TemporaryFolder root_;
};

TEST_F(GpuTest, PresentWhereADeviceFileIs) {
  EXPECT_FALSE(gpu_present(root_.path()));
  root_.write("dev/nvidiactl", "");
  root_.write("dev/nvidia-uvm", "");
  root_.write("dev/nvidia0x", "");
  EXPECT_FALSE(gpu_present(root_.path()));
  root_.write("dev/nvidia3", "");  // a container with one of four
  EXPECT_TRUE(gpu_present(root_.path()));
}

TEST_F(GpuTest, PresentUnderWsl) {
  root_.write("dev/dxg", "");
  EXPECT_TRUE(gpu_present(root_.path()));
}

TEST_F(GpuTest, HiddenByCudaVisibleDevices) {
  root_.write("dev/nvidia0", "");
  for (const char* none : {"", "-1"}) {
    ::setenv("CUDA_VISIBLE_DEVICES", none, 1);
    EXPECT_FALSE(gpu_present(root_.path())) << none;
  }
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  EXPECT_TRUE(gpu_present(root_.path()));
}

TEST_F(GpuTest, NumaNodeOfAPciAddress) {
  root_.write("sys/bus/pci/devices/0000:c1:00.0/numa_node", "1\n");
  root_.write("sys/bus/pci/devices/0000:17:00.0/numa_node", "-1\n");
  root_.write("sys/bus/pci/devices/0000:18:00.0/numa_node", "");
  root_.write("sys/numa_node", "7\n");
  EXPECT_EQ(numa_node_of_pci("0000:c1:00.0", root_.path()), 1);
  EXPECT_EQ(numa_node_of_pci("0000:C1:00.0", root_.path()), 1);
  EXPECT_EQ(numa_node_of_pci("00000000:C1:00.0", root_.path()), 1);
  EXPECT_EQ(numa_node_of_pci("0000:17:00.0", root_.path()), -1);
  EXPECT_EQ(numa_node_of_pci("0000:18:00.0", root_.path()), -1);
  EXPECT_EQ(numa_node_of_pci("0000:19:00.0", root_.path()), -1);
  EXPECT_EQ(numa_node_of_pci("", root_.path()), -1);
  EXPECT_EQ(numa_node_of_pci("../../..", root_.path()), -1);
}

TEST_F(GpuTest, CudasLibraryIsTheOneForTheProgramsTorchElseForTheNewest) {
  for (const char* const name : {"torch29", "torch211", "torch215", "cmake"}) {
    root_.write(std::string("lib/") + name + "/file", "");
  }
  using Names = std::vector<std::string>;
  const std::string lib = root_.path("lib");
  EXPECT_EQ(cuda_library_search(11, lib).lib_subfolders, Names({"torch211"}));
  EXPECT_EQ(cuda_library_search(0, lib).lib_subfolders, Names({"torch215", "torch211", "torch29"}));
  EXPECT_EQ(cuda_library_search(0, root_.path("nowhere")).lib_subfolders, Names());
}

}  // namespace
}  // namespace elixir
