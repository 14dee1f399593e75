// Plans that a start keeps for the next one.

#include "planner/search/plan_cache.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "planner/machine_cache.h"
#include "planner/plan/plan_json.h"
#include "planner/report/plan_text.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::planner {
namespace {

using testing::a100_server;

ModelProfile profile_of(const char* name) {
  return testing::gpt_profile(must(transformer_config(name)));
}

class PlanCacheTest : public ::testing::Test {
 protected:
  PlanCacheTest() { ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1); }
  ~PlanCacheTest() override { ::unsetenv("XDG_CACHE_HOME"); }

  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(must(cache_folder()))) {
      found.push_back(entry.path());
    }
    return found;
  }

  const TemporaryFolder folder_;
  const ModelProfile profile_ = profile_of("gpt2-4b");
};

TEST_F(PlanCacheTest, AKeyIsOfAllThatGoesIntoAPlan) {
  const std::string key = plan_key(profile_, a100_server(1), {});
  EXPECT_EQ(plan_key(profile_, a100_server(1), {}), key);
  std::set<std::string> keys = {
      key,
      plan_key(profile_of("gpt2-xl"), a100_server(1), {}),
      plan_key(profile_, a100_server(2), {}),
      plan_key(profile_, a100_server(1), {.accumulate = 2}),
      plan_key(profile_, a100_server(1), {.update = UpdateMode::kDeferred}),
      plan_key(profile_, a100_server(1), {.host_ahead = false}),
      plan_key(profile_, a100_server(1), {.copies_at_once = true}),
      plan_key(profile_, a100_server(1), {.layout = {.spare_slots = 0}}),
      plan_key(profile_, a100_server(1), {.layout = {.swing_stride = 0}})};
  Machine two_nodes = a100_server(2);
  two_nodes.nodes = 2;
  keys.insert(plan_key(profile_, two_nodes, {}));
  EXPECT_EQ(keys.size(), 10u);
}

TEST_F(PlanCacheTest, APlanComesBackWhole) {
  const Plan plan = must(make_plan(profile_, a100_server(1), {})).plan;
  EXPECT_FALSE(load_cached_plan("key").has_value());
  store_cached_plan("key", plan);
  const std::optional<Plan> loaded = load_cached_plan("key");
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(to_json(*loaded), to_json(plan));
  EXPECT_EQ(plan_text(*loaded), plan_text(plan));
  EXPECT_EQ(loaded->measured_rates, "");
  EXPECT_THAT(files(), SizeIs(1));
}

TEST_F(PlanCacheTest, ADamagedOneIsNone) {
  store_cached_plan("key", must(make_plan(profile_, a100_server(1), {})).plan);
  const std::filesystem::path path = files().front();
  std::string text;
  std::getline(std::ifstream(path), text, '\0');
  for (size_t at = 0; at < text.size(); at += text.size() / 50) {
    std::string damaged = text;
    damaged[at] = damaged[at] == '1' ? '2' : '1';
    std::ofstream(path) << damaged;
    EXPECT_FALSE(load_cached_plan("key").has_value()) << at;
    std::ofstream(path) << text.substr(0, at);
    EXPECT_FALSE(load_cached_plan("key").has_value()) << at;
  }
  std::ofstream(path) << text;
  EXPECT_TRUE(load_cached_plan("key").has_value());
}

TEST_F(PlanCacheTest, TheNewestAreKeptWhateverTheClockSaysOfTheOthers) {
  const Plan plan = must(make_plan(profile_, a100_server(1), {})).plan;
  for (size_t i = 0; i < kMostCachedPlans + 20; ++i) {
    store_cached_plan("key" + std::to_string(i), plan);
    const std::filesystem::path newest = must(cache_folder()) + "/plan-key" + std::to_string(i);
    EXPECT_TRUE(load_cached_plan("key" + std::to_string(i)).has_value());
    std::filesystem::last_write_time(
        newest, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1000 - i));
  }
  EXPECT_EQ(files().size(), kMostCachedPlans);
}

}  // namespace
}  // namespace elixir::planner
