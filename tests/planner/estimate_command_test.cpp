// elixirctl estimate, from its command line to what it prints.

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/compute_type_names.h"
#include "ctl/command.h"
#include "ctl/model_profile.h"
#include "planner/machine.h"
#include "planner/simulate/step_model.h"
#include "tests/planner/gpt_profile.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::ctl {
namespace {

using nlohmann::json;

constexpr uint64_t kGiB = uint64_t{1} << 30;

// What the profile below answers; and how it was asked.
struct FakeProfile {
  Status status;
  std::vector<ModelProfileRequest> asked;
};
FakeProfile& fake_profile() {
  static FakeProfile fake;
  return fake;
}

}  // namespace

// In elixir-profile's place: half a GiB, and one for each sequence.
Result<planner::ModelProfile> profile_of_model(const ModelProfileRequest& request) {
  fake_profile().asked.push_back(request);
  if (!fake_profile().status.ok()) return fake_profile().status;
  const Result<planner::TransformerConfig> config = planner::config_of(request);
  if (!config.ok()) return config.status();
  planner::ModelProfile profile = planner::testing::gpt_profile(
      *config,
      {.batch = static_cast<uint64_t>(request.batch), .seq = static_cast<uint64_t>(request.seq)});
  profile.type = request.dtype;
  profile.buffer_bytes = 0;
  profile.activation_bytes = kGiB / 2 + kGiB * static_cast<uint64_t>(request.batch);
  return profile;
}

namespace {

struct Outcome {
  int code;
  std::string out, err;
};

Outcome estimate(const std::vector<std::string>& arguments) {
  fake_profile().asked.clear();
  CLI::App app("", "elixirctl");
  init_cli(app);
  const Command command = add_estimate(app);
  std::vector<const char*> argv = {"elixirctl", "estimate"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  int code = parse_cli(app, static_cast<int>(argv.size()), argv.data());
  if (code < 0) code = command.run();
  const std::string out = ::testing::internal::GetCapturedStdout();
  return {code, out, ::testing::internal::GetCapturedStderr()};
}

json estimate_json(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  const Outcome outcome = estimate(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json::parse(outcome.out, nullptr, false);
}

const char* const kRows[] = {"ddp",           "zero1",         "zero2", "zero3",
                             "zero2_offload", "zero3_offload", "elixir"};

TEST(EstimateCommand, ZerosExampleOfItsFirstFigure) {
  const json out = estimate_json({"--params", "7.5e9", "--gpus", "64"});
  EXPECT_EQ(out["params"], 7'500'000'000);
  EXPECT_EQ(out["gpus"], 64);
  EXPECT_EQ(out["ddp"]["gpu_bytes"], 120'000'000'000);
  EXPECT_EQ(out["zero1"]["gpu_bytes"], 31'406'250'000);
  EXPECT_EQ(out["zero2"]["gpu_bytes"], 16'640'625'000);
  EXPECT_EQ(out["zero3"]["gpu_bytes"], 1'875'000'000);
  EXPECT_EQ(out["zero2_offload"]["gpu_bytes"], 15'000'000'000);
  EXPECT_EQ(out["zero2_offload"]["host_bytes_per_node"], 13'125'000'000);  // 14 B * 8 / 64
  EXPECT_EQ(out["zero3_offload"]["gpu_bytes"], 2 * out["largest_param"].get<uint64_t>());
  EXPECT_EQ(out["zero3_offload"]["host_bytes_per_node"], 15'000'000'000);
  EXPECT_EQ(out["elixir"]["host_bytes_per_node"], 13'125'000'000);
  EXPECT_EQ(out["exchange"], "collective");
  EXPECT_EQ(out["largest_param_assumed"], true);
  EXPECT_TRUE(fake_profile().asked.empty());
}

TEST(EstimateCommand, KindsAddUpInEveryRow) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--params", "7.5B", "--gpus", "64"},
        {"--model", "gpt2-10b", "--gpus", "4"},
        {"--model", "llama-7b", "--gpus", "3", "--gpus-per-node", "2", "--dtype", "fp32"}}) {
    const json out = estimate_json(arguments);
    for (const char* row : kRows) {
      uint64_t sum = 0;
      for (const auto& [kind, bytes] : out[row]["by_kind"].items()) sum += bytes.get<uint64_t>();
      EXPECT_EQ(sum, out[row]["gpu_bytes"].get<uint64_t>() +
                         out[row]["host_bytes_per_node"].get<uint64_t>())
          << row;
      EXPECT_FALSE(out[row].contains("fits")) << row;
      EXPECT_FALSE(out[row].contains("largest_batch")) << row;
    }
  }
}

TEST(EstimateCommand, AModelByItsName) {
  const json out = estimate_json({"--model", "gpt2-10b", "--gpus", "4"});
  constexpr uint64_t kParams = 9'876'287'488;
  constexpr uint64_t kEmbedding = uint64_t{50257} * 4096;
  EXPECT_EQ(out["params"], kParams);
  EXPECT_EQ(out["largest_param"], kEmbedding);
  EXPECT_EQ(out["exchange"], "collective");
  EXPECT_EQ(out["zero3_offload"]["gpu_bytes"], 2 * kEmbedding);
  EXPECT_FALSE(out.contains("activation_bytes"));
}

// Of chunks alone: the largest parameter of a layer has 67 M elements.
TEST(EstimateCommand, OfAModelElixirTakesTheLeastThatAnyPlanDoes) {
  for (const char* gpus : {"1", "4"}) {
    const json out = estimate_json({"--model", "gpt2-10b", "--gpus", gpus});
    EXPECT_EQ(fake_profile().asked.size(), 1u);
    const json& row = out["elixir"];
    const uint64_t chunk = row["chunk_numel"], blocks = row["rcache_blocks"];
    const uint64_t long_blocks = row["long_blocks"], long_numel = row["long_numel"];
    EXPECT_GE(chunk, 4u * 4096 * 4096);
    EXPECT_LT(chunk, 5u * 4096 * 4096);
    EXPECT_EQ(long_blocks, 1u);
    EXPECT_GE(long_numel, uint64_t{50257} * 4096);
    // Of several GPUs a block is a whole shard of each.
    const auto near = [&](const char* kind, uint64_t numel) {
      const double bytes = 2.0 * static_cast<double>(numel);
      EXPECT_NEAR(row["by_kind"][kind].get<double>(), bytes, 1e-5 * bytes) << kind;
    };
    near("gpu_rcache", blocks * chunk + long_blocks * long_numel);
    near("gpu_grad_blocks", planner::kGradBlocks * chunk);
    EXPECT_EQ(row["by_kind"]["gpu_states"], 0);
    EXPECT_GE(row["host_bytes_per_node"], 14u * 9'876'287'488);
    EXPECT_FALSE(row.contains("fits"));
  }
}

TEST(EstimateCommand, ALengthOfChunksThatIsAskedFor) {
  const json any = estimate_json({"--model", "gpt2-10b"});
  const json whole = estimate_json({"--model", "gpt2-10b", "--chunk-numel", "205852672"});
  EXPECT_EQ(whole["elixir"]["chunk_numel"], 205'852'672u);  // the token embedding's
  EXPECT_EQ(whole["elixir"]["long_blocks"], 0);
  EXPECT_GT(whole["elixir"]["gpu_bytes"], any["elixir"]["gpu_bytes"]);
  EXPECT_EQ(whole["zero3"], any["zero3"]);
}

TEST(EstimateCommand, WillItFit) {
  // 16 GiB need 0.95 of more than 16.84 GiB.
  const auto fits = [](const char* gpu, const char* host, const char* row) {
    std::vector<std::string> arguments = {"--params", "1073741824", "--gpus", "1"};
    if (gpu != nullptr) arguments.insert(arguments.end(), {"--gpu-memory", gpu});
    if (host != nullptr) arguments.insert(arguments.end(), {"--host-memory", host});
    return estimate_json(arguments)[row]["fits"].get<bool>();
  };
  EXPECT_FALSE(fits("16.8GiB", nullptr, "ddp"));
  EXPECT_TRUE(fits("16.9GiB", nullptr, "ddp"));
  EXPECT_TRUE(fits("16.9GiB", "1MiB", "ddp"));  // nothing of it is on the host
  // 14 GiB need 0.95 of more than 14.73 GiB; what the host lacks of Elixir's is on the GPU.
  EXPECT_FALSE(fits(nullptr, "14.7GiB", "zero2_offload"));
  EXPECT_TRUE(fits(nullptr, "14.8GiB", "zero2_offload"));
  EXPECT_TRUE(fits(nullptr, "14.7GiB", "elixir"));
  EXPECT_TRUE(fits("3GiB", "14.8GiB", "elixir"));
  EXPECT_FALSE(fits("64MiB", "14.8GiB", "elixir"));
  // What the host lacks is on the GPU.
  EXPECT_TRUE(fits("20GiB", "1GiB", "elixir"));
  EXPECT_FALSE(fits("10GiB", "1GiB", "elixir"));
}

// U_allowed of b sequences is 0.95 (40 - 1.25 (b + 0.5)) GiB.
TEST(EstimateCommand, LargestBatchThatFits) {
  const std::vector<std::string> arguments = {"--model", "gpt2-1b", "--gpu-memory", "40GiB"};
  const json out = estimate_json(arguments);
  ASSERT_GE(fake_profile().asked.size(), 2u);
  EXPECT_LE(fake_profile().asked.size(), 20u);
  std::set<int64_t> batches;
  for (const ModelProfileRequest& asked : fake_profile().asked) batches.insert(asked.batch);
  EXPECT_EQ(batches.size(), fake_profile().asked.size()) << "one was profiled twice";
  EXPECT_EQ(fake_profile().asked[0].batch, 1);
  EXPECT_EQ(fake_profile().asked[1].seq, 1024);
  EXPECT_EQ(fake_profile().asked[1].model, "gpt2-1b");
  EXPECT_TRUE(fake_profile().asked[1].checkpoint_activations);
  const auto left = [](double batch) { return 0.95 * (40 - 1.25 * (batch + 0.5)) * kGiB; };
  for (const char* row : kRows) {
    const auto states = out[row]["gpu_bytes"].get<double>();
    const auto batch = out[row]["largest_batch"].get<double>();
    EXPECT_GE(batch, 1) << row;
    EXPECT_LE(states, left(batch)) << row;
    EXPECT_GT(states, left(batch + 1)) << row;
  }
  EXPECT_LT(out["ddp"]["largest_batch"], out["elixir"]["largest_batch"]);
  EXPECT_FALSE(out.contains("activation_bytes"));

  const json too_small_a_host =
      estimate_json({"--model", "gpt2-1b", "--gpu-memory", "40GiB", "--host-memory", "1GiB"});
  EXPECT_GT(too_small_a_host["elixir"]["largest_batch"], 0);
  EXPECT_GT(too_small_a_host["elixir"]["by_kind"]["gpu_states"], 14 * kGiB);
  EXPECT_LT(too_small_a_host["elixir"]["largest_batch"], out["elixir"]["largest_batch"]);
  EXPECT_EQ(too_small_a_host["zero2_offload"]["largest_batch"], 0);
  EXPECT_EQ(too_small_a_host["zero2_offload"]["fits"], false);
  EXPECT_GT(too_small_a_host["ddp"]["largest_batch"], 0);

  const json too_small_a_gpu =
      estimate_json({"--model", "gpt2-1b", "--gpu-memory", "1GiB", "--host-memory", "100GiB"});
  for (const char* row : kRows) {
    EXPECT_EQ(too_small_a_gpu[row]["largest_batch"], 0) << row;
    EXPECT_EQ(too_small_a_gpu[row]["fits"], false) << row;
  }
}

TEST(EstimateCommand, ActivationsOfTheBatchThatIsAskedFor) {
  const std::vector<std::string> arguments = {"--model", "gpt2-1b", "--gpu-memory", "40GiB",
                                              "--seq",   "512",     "--batch"};
  const auto with_batch = [&](const char* batch) {
    std::vector<std::string> all = arguments;
    all.push_back(batch);
    return estimate_json(all);
  };
  const json eight = with_batch("8");
  EXPECT_EQ(eight["batch"], 8);
  EXPECT_EQ(eight["seq"], 512);
  EXPECT_EQ(fake_profile().asked[0].seq, 512);
  EXPECT_EQ(eight["activation_bytes"], kGiB / 2 + 8 * kGiB);
  // 17.8 GB of states; 27.9 GiB are left beside 8 sequences, 14.8 GiB beside 19.
  EXPECT_EQ(eight["ddp"]["fits"], true);
  EXPECT_EQ(with_batch("19")["ddp"]["fits"], false);
  EXPECT_EQ(with_batch("19")["elixir"]["fits"], true);
  EXPECT_EQ(estimate_json({"--model", "gpt2-1b", "--batch", "1", "--no-checkpoint-activations",
                           "--dtype", "fp32"})["checkpoint_activations"],
            false);
  EXPECT_FALSE(fake_profile().asked[0].checkpoint_activations);
  EXPECT_EQ(fake_profile().asked[0].dtype, ComputeType::kFp32);
}

TEST(EstimateCommand, ZerosOwnArithmeticStandsBesideWhatTheProfileCounts) {
  const json zero = estimate_json({"--model", "gpt2-1b", "--gpu-memory", "40GiB", "--gpus", "8",
                                   "--batch", "8", "--seq", "512", "--zero"})["zero"];
  EXPECT_EQ(zero["largest_params"]["ddp"], 40 * kGiB / 16);
  EXPECT_EQ(zero["largest_params"]["zero3"], 40 * kGiB / 2);
  EXPECT_EQ(zero["p_a_bytes"], zero["checkpoint_bytes"].get<uint64_t>() / 8);
  EXPECT_EQ(zero["activation_bytes"], 12 * zero["checkpoint_bytes"].get<uint64_t>());
  EXPECT_EQ(zero["p_a_cpu_bytes"], 0);
  const Outcome text = estimate({"--params", "7.5e9", "--zero"});
  EXPECT_THAT(text.out, HasSubstr("needs --gpu-memory, or --model and --batch"));
  EXPECT_FALSE(estimate_json({"--params", "7.5e9"}).contains("zero"));
}

TEST(EstimateCommand, WithoutElixirProfileItSaysSo) {
  fake_profile().status = error(Code::kUnavailable, "elixir-profile is not there; build it");
  const Outcome outcome = estimate({"--model", "gpt2-1b", "--gpu-memory", "40GiB", "--json"});
  fake_profile().status = Status();
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("left out: elixir-profile is not there; build it\n"));
  const json out = json::parse(outcome.out);
  EXPECT_EQ(out["elixir"]["gpu_bytes"], 4 * 2 * out["largest_param"].get<uint64_t>());
  EXPECT_FALSE(out["elixir"].contains("chunk_numel"));
  EXPECT_FALSE(out["elixir"].contains("largest_batch"));
  EXPECT_EQ(out["elixir"]["fits"], true);
}

TEST(EstimateCommand, ReadsAConfigAndAHeader) {
  const TemporaryFolder folder;
  const std::string config = folder.write(
      "config.json", R"({"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024,
                         "n_embd": 768, "n_layer": 12, "n_head": 12})");
  EXPECT_EQ(estimate_json({"--config", config})["params"], 124'439'808);
  estimate_json({"--config", config, "--gpu-memory", "1GiB"});
  ASSERT_GE(fake_profile().asked.size(), 1u);
  EXPECT_EQ(fake_profile().asked[0].config_path, config);

  const std::string header =
      R"({"w": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]},
          "mask": {"dtype": "U8", "shape": [2], "data_offsets": [30, 32]}})";
  std::string file = std::string(1, static_cast<char>(header.size())) + std::string(7, '\0');
  file += header + std::string(32, 'x');
  const std::string path = folder.write("m.safetensors", file);
  const Outcome outcome = estimate({"--safetensors", path, "--gpu-memory", "1GiB", "--json"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(json::parse(outcome.out)["params"], 15);
  EXPECT_EQ(json::parse(outcome.out)["largest_param"], 15);
  EXPECT_THAT(outcome.err, HasSubstr("left out 1 tensors"));
  EXPECT_TRUE(fake_profile().asked.empty());
}

std::string safetensors_of(const std::string& header, uint64_t bytes) {
  return std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header +
         std::string(bytes, 'x');
}

TEST(EstimateCommand, QuantisedWeightsAreCountedAndNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.write(
      "m.safetensors",
      safetensors_of(R"({"w": {"dtype": "I8", "shape": [3, 5], "data_offsets": [0, 15]},
          "b": {"dtype": "BF16", "shape": [5], "data_offsets": [15, 25]}})",
                     25));
  const json out = estimate_json({"--safetensors", path});
  EXPECT_EQ(out["params"], 20);
  EXPECT_EQ(out["quantised"],
            json::parse(R"([{"type": "int8", "tensors": 1, "params": 15, "bytes": 15}])"));
  EXPECT_EQ(out["trainable"], false);
  const Outcome text = estimate({"--safetensors", path});
  EXPECT_THAT(text.out, HasSubstr("15 parameters are quantised, int8: 1 tensor of 15 B.\n"));
  EXPECT_THAT(text.out, HasSubstr("Elixir cannot train quantised weights."));
  EXPECT_FALSE(estimate_json({"--params", "1e9"}).contains("quantised"));
}

TEST(EstimateCommand, AConfigSaysTheTypeUnlessTold) {
  const TemporaryFolder folder;
  const std::string config = folder.write(
      "config.json", R"({"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024,
                         "n_embd": 768, "n_layer": 12, "n_head": 12, "torch_dtype": "float32"})");
  EXPECT_EQ(estimate_json({"--config", config})["dtype"], "fp32");
  EXPECT_EQ(estimate_json({"--config", config, "--dtype", "bf16"})["dtype"], "bf16");
  EXPECT_EQ(estimate_json({"--model", "gpt2-small"})["dtype"], "bf16");
}

TEST(EstimateCommand, ATableForPeople) {
  const Outcome outcome = estimate(
      {"--model", "gpt2-10b", "--gpus", "4", "--gpu-memory", "40GiB", "--host-memory", "500GiB"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("gpt2-10b: 9.876 B parameters, bf16, 4 GPUs, 4 in a node\n"));
  EXPECT_THAT(outcome.out, HasSubstr("will it fit\n"));
  EXPECT_THAT(outcome.out, HasSubstr("no: GPU 109.17 GiB short\n"));  // ddp
  for (const char* row : kRows) EXPECT_THAT(outcome.out, HasSubstr(std::string("  ") + row + " "));
  EXPECT_LE(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 18);
  const Outcome bare = estimate({"--params", "7.5B"});
  EXPECT_THAT(bare.out, Not(HasSubstr("will it fit")));
  EXPECT_THAT(bare.out,
              HasSubstr("elixir: chunks as long as the largest parameter, host exchange. "));
  EXPECT_THAT(bare.out, HasSubstr("parameter (assumed) has 216.6 M elements.\n"));
  EXPECT_THAT(outcome.out,
              HasSubstr("elixir: the least that it runs with, collective exchange, 2 blocks of "
                        "68.62 M\nelements and 1 of 205.9 M. The largest"));
  const Outcome parts = estimate({"--model", "gpt2-10b", "--gpus", "12", "--gpu-memory", "40GiB"});
  EXPECT_THAT(parts.out, HasSubstr("no: the nodes differ\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("GPU states")));
  EXPECT_THAT(
      estimate({"--model", "gpt2-1b", "--gpu-memory", "40GiB", "--host-memory", "1GiB"}).out,
      HasSubstr("GPU states"));
}

struct Refusal {
  std::vector<std::string> arguments;
  int code;
  const char* says;
};

TEST(EstimateCommand, RefusesInOneLineWithARemedy) {
  const TemporaryFolder folder;
  const std::string text = folder.write("config.json", "{}");
  const Refusal refusals[] = {
      {{}, 2, "0 of --params, --model, --config and --safetensors: give exactly one"},
      {{"--params", "1", "--model", "gpt2-10b"}, 2, "2 of --params"},
      {{"--params", "0"}, 2, "from 1 to 1e15"},
      {{"--params=-5"}, 2, "from 1 to 1e15"},
      {{"--params", "many"}, 2, "as 7.5e9"},
      {{"--params", "7.5X"}, 2, "as 7.5e9"},
      {{"--params", "nan"}, 2, "from 1 to 1e15"},
      {{"--params", "inf"}, 2, "from 1 to 1e15"},
      {{"--params", "1.1e15"}, 2, "from 1 to 1e15"},
      {{"--params", "1e999"}, 2, "from 1 to 1e15"},
      {{"--params", "1", "--gpus", "0"}, 2, "--gpus 0: it must be from 1 to 4096"},
      {{"--params", "1", "--gpus", "4097"}, 2, "--gpus 4097"},
      {{"--params", "1", "--gpus=-1"}, 2, "--gpus -1"},
      {{"--params", "1", "--gpus", "99999999999999999999"}, 2, "--gpus"},
      {{"--params", "1", "--gpus-per-node=-1"}, 2, "--gpus-per-node -1"},
      {{"--params", "1", "--gpus-per-node", "1025"}, 2, "from 1 to 1024"},
      {{"--params", "1", "--gpu-memory", "lots"}, 2, "--gpu-memory: 'lots'"},
      {{"--params", "1", "--host-memory", "0"}, 2, "--host-memory: 0: there must be some"},
      {{"--params", "1", "--dtype", "int8"}, 2, "use bf16, fp16 or fp32"},
      {{"--params", "1", "--batch", "8"}, 2, "--model or --config"},
      {{"--params", "1", "--chunk-numel", "8"}, 2, "--model or --config"},
      {{"--model", "gpt2-10b", "--chunk-numel", "128"}, 2, "chunks of 128 elements make more than"},
      {{"--model", "gpt2-1b", "--batch=-1"}, 2, "--batch -1"},
      {{"--model", "gpt2-1b", "--batch", "1", "--seq", "1025"}, 2, "--seq 1025: it must be from 1"},
      {{"--model", "gpt2_10b"}, 2, "did you mean 'gpt2-10b'?"},
      {{"--config", folder.path("missing.json")}, 4, "No such file"},
      {{"--config", text}, 4, "known: gpt2, opt, llama, mistral"},
      {{"--safetensors", text}, 4, "'weight_map'"},
      {{"--parms", "1"}, 2, "did you mean '--params'?"},
  };
  for (const Refusal& refusal : refusals) {
    const Outcome outcome = estimate(refusal.arguments);
    EXPECT_EQ(outcome.code, refusal.code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(refusal.says));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace elixir::ctl
