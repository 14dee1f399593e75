#include "client/ranks/network_speed.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

void write_link(const TemporaryFolder& root, const std::string& name, const std::string& state,
                const std::string& megabits) {
  root.write("sys/class/net/" + name + "/operstate", state + "\n");
  root.write("sys/class/net/" + name + "/speed", megabits + "\n");
  if (!name.starts_with("veth")) root.write("sys/class/net/" + name + "/device/vendor", "0x1\n");
}

TEST(NetworkSpeed, IsTheFastestLinkThatIsUp) {
  const TemporaryFolder root;
  EXPECT_EQ(network_gb_s(root.path()), 0);
  write_link(root, "lo", "unknown", "");
  write_link(root, "wlan0", "up", "-1");  // a speed that the driver does not tell
  EXPECT_EQ(network_gb_s(root.path()), 0);
  write_link(root, "eth0", "up", "10000");
  write_link(root, "eth1", "down", "100000");
  write_link(root, "veth0", "up", "100000");  // a container's
  EXPECT_DOUBLE_EQ(network_gb_s(root.path()), 1.25);
}

TEST(NetworkSpeed, InfiniBandCountsAsItsPortsSay) {
  const TemporaryFolder root;
  write_link(root, "eth0", "up", "10000");
  const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
  root.write(port + "state", "1: DOWN\n");
  root.write(port + "rate", "200 Gb/sec (4X HDR)\n");
  EXPECT_DOUBLE_EQ(network_gb_s(root.path()), 1.25);
  root.write(port + "state", "4: ACTIVE\n");
  EXPECT_DOUBLE_EQ(network_gb_s(root.path()), 25);
}

}  // namespace
}  // namespace elixir
