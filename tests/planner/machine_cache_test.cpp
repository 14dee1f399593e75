// What a probe found, kept in a file and read back; files that cannot be.

#include "planner/machine_cache.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "planner/machine_json.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::planner {
namespace {

using testing::some_probe;

class MachineCacheTest : public ::testing::Test {
 protected:
  MachineCacheTest() { clear(); }
  ~MachineCacheTest() override { clear(); }
  void clear() {
    ::unsetenv("ELIXIR_MACHINE_FILE");
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("HOME");
  }
  TemporaryFolder folder_;
};

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

TEST_F(MachineCacheTest, LiesWhereTheEnvironmentSays) {
  expect_refused(machine_cache_path().status(), Code::kInvalidArgument, {"ELIXIR_MACHINE_FILE"});
  const std::string name = "machine-" + host_name() + ".json";
  ::setenv("HOME", "/home/a", 1);
  EXPECT_EQ(*machine_cache_path(), "/home/a/.cache/elixir/" + name);
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(*machine_cache_path(), "/home/a/.cache/elixir/" + name);
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(*machine_cache_path(), "/cache/elixir/" + name);
  ::setenv("ELIXIR_MACHINE_FILE", "some.json", 1);
  EXPECT_EQ(*machine_cache_path(), "some.json");
  ::setenv("ELIXIR_MACHINE_FILE", "", 1);
  EXPECT_EQ(*machine_cache_path(), "/cache/elixir/" + name);
}

TEST_F(MachineCacheTest, RatesOfHardwareLieBesideTheHostsUnderItsName) {
  EXPECT_EQ(hardware_cache_path("a").status().code(), Code::kInvalidArgument);
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(*hardware_cache_path("NVIDIA H100 80GB HBM3 79.11 GiB, 16 x AMD EPYC (tm), 2 nodes"),
            "/cache/elixir/rates-NVIDIA-H100-80GB-HBM3-79-11-GiB-16-x-AMD-EPYC-tm-2-nodes.json");
  EXPECT_NE(*hardware_cache_path("A100 40 GiB"), *hardware_cache_path("A100 80 GiB"));
  EXPECT_LE(hardware_cache_path(std::string(5000, 'x'))->size(), 255u);
  EXPECT_FALSE(machine_file_is_named());
  ::setenv("ELIXIR_MACHINE_FILE", "/some/file.json", 1);
  EXPECT_TRUE(machine_file_is_named());
  EXPECT_EQ(*hardware_cache_path("a"), "/cache/elixir/rates-a.json");
}

TEST_F(MachineCacheTest, ReadsBackWhatItStored) {
  const std::string path = folder_.path("new/folder/machine.json");
  must(store_machine(path, some_probe()));
  const std::optional<ProbedMachine> loaded = must(load_machine(path));
  ASSERT_TRUE(loaded.has_value());
  const ProbedMachine& probed = *loaded;
  EXPECT_EQ(to_json(probed.machine), to_json(some_probe().machine));
  EXPECT_EQ(probed.machine.probed, "2031-02-03T04:05:06Z");
  EXPECT_EQ(probed.device, "cuda (Fake 9000)");
  EXPECT_EQ(probed.machine.cpu_update_gparam_s_by_trainers, (std::vector<double>{3, 2.5}));
  EXPECT_EQ(probed.notes, some_probe().notes);
  EXPECT_EQ(probed.hardware, some_probe().hardware);
  // It is a machine file, too.
  EXPECT_TRUE(machine_from_json(to_json(probed)).ok());
}

TEST_F(MachineCacheTest, ReplacesAndLeavesNothingElse) {
  const std::string path = folder_.path("machine.json");
  ProbedMachine probed = some_probe();
  ASSERT_TRUE(store_machine(path, probed).ok());
  probed.machine.dram_gb_s = 7;
  probed.notes.clear();
  ASSERT_TRUE(store_machine(path, probed).ok());
  EXPECT_EQ((*load_machine(path))->machine.dram_gb_s, 7);
  EXPECT_TRUE((*load_machine(path))->notes.empty());
  const std::filesystem::directory_iterator files(folder_.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  struct stat state {};
  ASSERT_EQ(::stat(path.c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 0777, 0644u);
}

TEST_F(MachineCacheTest, AMissingFileIsNoError) {
  const std::optional<ProbedMachine> loaded = must(load_machine(folder_.path("none/at/all")));
  EXPECT_FALSE(loaded.has_value());
}

TEST_F(MachineCacheTest, AFileThatCannotBeUsedIsSaid) {
  std::string whole = to_json(some_probe());
  std::string other_list = whole, other_notes = whole;
  other_list.replace(other_list.find("3.0,"), 3, "\"a\"");
  other_notes.replace(other_notes.find("\"collectives"), 1, "3,\"");
  for (const std::string& text : {std::string(), std::string("nonsense"), std::string("{}"),
                                  whole.substr(0, whole.size() / 2), other_list, other_notes}) {
    const std::string path = folder_.write("machine.json", text);
    EXPECT_THAT(refusal_of(load_machine(path).status(), Code::kBadInput),
                AllOf(StartsWith(path), EndsWith("remove it or run elixirctl probe")))
        << text;
  }
  EXPECT_EQ(load_machine(folder_.path()).status().code(), Code::kBadInput);
}

TEST_F(MachineCacheTest, AFolderThatCannotBeMadeIsSaid) {
  const std::string file = folder_.write("file", "");
  expect_refused(store_machine(file + "/folder/machine.json", some_probe()), Code::kUnavailable,
                 {file, "ELIXIR_MACHINE_FILE"});
  // In the way of the rename: the temporary file goes.
  std::filesystem::create_directories(folder_.path("taken/machine.json"));
  EXPECT_EQ(store_machine(folder_.path("taken/machine.json"), some_probe()).code(),
            Code::kUnavailable);
  const std::filesystem::directory_iterator files(folder_.path("taken"));
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

}  // namespace
}  // namespace elixir::planner
