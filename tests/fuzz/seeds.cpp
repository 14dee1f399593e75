// Writes valid inputs of the targets, as today's code makes them, for a fuzzing run to begin from
// beside the corpus: messages carry the layout's version, so stored ones would grow old.
//
//   fuzz_seeds REPOSITORY FOLDER     writes FOLDER/NAME/*, NAME as in fuzz_NAME.cpp

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/details.h"
#include "client/ranks/member.h"
#include "client/ranks/watch_connection.h"
#include "planner/machine_cache.h"
#include "planner/plan/plan_json.h"
#include "planner/profile_json.h"
#include "planner/search/make_plan.h"
#include "shm/messages.h"
#include "shm/parameter_table.h"
#include "tests/fuzz/real_pickle.h"
#include "tests/fuzz/stored_folder_files.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"

namespace elixir::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr char kStatus[] =
    R"({"daemon":{"pid":4242,"version":"0.1.0","uptime_s":3725.5,"threads_by_node":{"0":4,"1":3},
"page_bytes":2097152,"bandwidth_gb_s":70.25,"lost_doorbells":0},"jobs":[{"id":7,"job":"run-1-0",
"ranks":[0,1],"world_size":4,"exchange":"collective","dtype":"bf16","chunks":14,"gpu_chunks":3,
"chunk_numel":262144,"waste_ratio":0.031,"host_bytes":52428800,"filling_bytes":0,"need_bytes":9,
"bytes_by_kind":{"control":8192,"grads":1048576,"params":2097152,"state":3145728,"sums":4096},
"steps_done":120,"device_bytes":4096,"pageable_bytes":1,"grad_norm":null,"late_wakes":1,
"loss_last_step":2.41,"pids":[11,12],"state":"training"}]})";

constexpr char kSafetensors[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},
"a.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
"h.0.attn.bias":{"dtype":"F32","shape":[1,1,2,2],"data_offsets":[16,32]},
"rotary_emb.inv_freq":{"dtype":"F32","shape":[1],"data_offsets":[32,36]},
"steps":{"data_offsets":[36,44],"shape":[1],"dtype":"I64"}})";

class Seeds {
 public:
  Seeds(fs::path repository, fs::path folder)
      : repository_(std::move(repository)), folder_(std::move(folder)) {}

  void write(std::string_view target, std::string_view bytes) {
    const fs::path place = folder_ / target;
    fs::create_directories(place);
    std::ofstream file(place / ("seed_" + std::to_string(count_++)), std::ios::binary);
    file << bytes;
    ELIXIR_CHECK(file.flush().good(), "cannot write to {}", place.string());
  }

  std::string text_of(const fs::path& path) const {
    std::ifstream file(repository_ / path, std::ios::binary);
    ELIXIR_CHECK(file.good(), "cannot read {}", (repository_ / path).string());
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  std::vector<std::string> texts_in(const fs::path& path) const {
    std::vector<std::string> texts;
    for (const fs::directory_entry& entry : fs::directory_iterator(repository_ / path)) {
      texts.push_back(text_of(entry.path()));
    }
    return texts;
  }

 private:
  const fs::path repository_, folder_;
  size_t count_ = 0;
};

template <typename T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string bytes_of(std::initializer_list<uint8_t> bytes) {
  return std::string(bytes.begin(), bytes.end());
}

// Of shapes that elixird accepts: one rank, and ranks with chunks of every kind.
std::vector<shm::Shape> shapes() {
  return {{.n_chunks = 4, .n_parameters = 2, .chunk_numel = 1024},
          {.type = ComputeType::kBf16,
           .exchange = shm::Exchange::kCollective,
           .ranks = 3,
           .n_chunks = 2,
           .n_gpu_chunks = 1,
           .n_frozen_chunks = 5,
           .n_parameters = 7,
           .chunk_numel = 2048}};
}

// As it is sent, for each of fuzz_message.cpp's ways to frame it.
template <typename Message>
void message(Seeds& seeds, uint8_t which, Message message = {}) {
  constexpr uint8_t kFramings = 4;
  shm::seal_message(message, 7);
  for (uint8_t framing = 0; framing < kFramings; ++framing) {
    seeds.write("message", bytes_of({which, framing}) + bytes_of(message));
  }
}

template <typename Message>
Message said(std::string_view text) {
  Message message{};
  message.code = static_cast<uint32_t>(Code::kProtocol);
  shm::set_text(message.text, text);
  return message;
}

void messages(Seeds& seeds) {
  for (const shm::Shape& shape : shapes()) {
    shm::AttachRequest request{};
    shm::set_text(request.job, "job");
    request.shape = shape;
    request.position.local_ranks = shape.ranks;
    message(seeds, 0, request);
    seeds.write("shape", bytes_of(shape));
  }
  shm::AttachReply reply{};
  reply.session_id = 1;
  message(seeds, 1, reply);
  message(seeds, 2, said<shm::Refusal>("refused"));
  message(seeds, 3, shm::RanksReady{.header = {}, .local_ranks = 2, .reserved = 0});
  message(seeds, 4, said<shm::SessionFault>("rank 1 died"));
  message<shm::Detach>(seeds, 5);
  message<shm::Hello>(seeds, 6);
  message<shm::Ack>(seeds, 7);
  message<shm::LoadChunk>(seeds, 8);
  message<shm::AwaitReady>(seeds, 9);
  message<shm::StepPosted>(seeds, 10);
  message<shm::GradsPublished>(seeds, 11);
  message<shm::SwingUpdated>(seeds, 12);
}

// The bytes before a table choose its shape: fuzz_parameter_table.cpp.
void tables(Seeds& seeds) {
  const std::vector<shm::ParameterPlace> places = {
      {"a.weight", 0, 0, 1000}, {"a.bias", 0, 1024, 10}, {"b", 1, 0, 2048}, {"c", 2, 128, 5}};
  const auto write = [&seeds](std::string shape, std::span<const shm::ParameterPlace> places) {
    const std::vector<std::byte> table = shm::encode_table(places);
    seeds.write("parameter_table",
                shape.append(reinterpret_cast<const char*>(table.data()), table.size()));
  };
  write(bytes_of({3, 0, 0, 1, 4}), places);  // all trained
  write(bytes_of({3, 0, 0, 0, 4}), places);
  write(bytes_of({1, 1, 1, 1, 3}), places);  // the last one frozen
  write(bytes_of({3, 0, 0, 1, 0}), {});
  // Longer than a chunk: placed on the CPU, on the GPU, frozen; over its end.
  const std::vector<shm::ParameterPlace> longer = {
      {"a", 1, 0, 4000}, {"b", 0, 0, 7}, {"c", 3, 0, 2049}, {"d", 5, 0, 4096}};
  write(bytes_of({3, 2, 2, 1, 3}), longer);
  write(bytes_of({2, 2, 2, 1, 3}), longer);
}

// Of rank 0 and of another rank, for each of fuzz_details.cpp's ways.
void details(Seeds& seeds) {
  using checkpoints::Details, checkpoints::find_dtype;
  const auto write = [&seeds](const Details& details) {
    const std::vector<std::byte> encoded = checkpoints::encode_details(details);
    const std::string all(reinterpret_cast<const char*>(encoded.data()), encoded.size());
    uint64_t length = 0;
    std::memcpy(&length, all.data(), sizeof length);
    seeds.write("details", bytes_of({0}) + all);
    seeds.write("details", bytes_of({1}) + all.substr(sizeof length, length) + bytes_of({0}) +
                               all.substr(sizeof length + length));
  };
  const std::vector<std::byte> eight(8);
  Details all;
  all.shapes = {{3, 5}, {}, {7}};
  all.extras.push_back({{"mask", find_dtype("BOOL"), {2, 4}}, eight});
  all.extras.push_back({{"seen", find_dtype("I64"), {}}, eight});
  all.manifest.step = 1000;
  all.manifest.groups = {{.lr = 1e-3, .weight_decay = 0.1, .hyper = {0.9, 0.95, 1e-8}}};
  all.manifest.updates_of = {{"a", 999}};
  all.manifest.program = "{}";
  all.keep = {.last = 3, .every = 10'000};
  all.shadow_bytes = 1 << 20;
  all.files = {{"config.json", eight}, {"user/rank-0.bin", {}}};
  all.updates = {{0, 1000}, {2, 999}};
  all.ignored = {"lm_head.weight"};
  all.device_hash = UINT64_MAX;
  write(all);
  Details of_another_rank;
  of_another_rank.files = {{"user/rank-1.bin", eight}};
  write(of_another_rank);
}

void manifests(Seeds& seeds) {
  checkpoints::Manifest full;
  full.step = 1000;
  full.updates = 998;
  full.groups = {{.lr = 1e-3, .weight_decay = 0.1, .hyper = {0.9, 0.95, 1e-8}}};
  full.loss_scale = {.value = 65536, .good_steps = 17};
  full.updates_of = {{"w", 3}};
  full.group_of = {{"w", 0}};
  full.program = "text";
  full.files = {{"user/rank-0.bin", 3, {{1, 7}, {2, UINT64_MAX}}}, {"config.json", 0, {}}};
  checkpoints::Manifest alone = full;
  alone.left_out = {.parameters = 3, .bytes = 100, .hash = UINT64_MAX};
  alone.states_alone = true;
  for (const std::string& text :
       {checkpoints::encode_manifest(full), checkpoints::encode_manifest(alone),
        checkpoints::encode_manifest({})}) {
    seeds.write("manifest", bytes_of({0}) + text);
    seeds.write("manifest", bytes_of({1}) + inner_of(text));
  }
}

// The first byte chooses the folder, as in fuzz_stored_folder.cpp.
void stored_folders(Seeds& seeds) {
  const std::string model = file_of(kModelHeader, kModelDataBytes);
  const std::string_view header = kSafetensors;
  seeds.write("stored_folder", bytes_of({0}) + model);
  seeds.write("stored_folder", bytes_of({0}) + bytes_of(uint64_t{header.size()}) +
                                   std::string(header) + std::string(44, 'x'));
  seeds.write("stored_folder", bytes_of({1}) + R"({"weight_map":{"w":"model-a.safetensors"}})");
  for (const uint64_t piece_bytes : {24, 4096}) {
    seeds.write("stored_folder", bytes_of({2}) + inner_of(stored_folder_manifest(piece_bytes)));
  }
  seeds.write("stored_folder", bytes_of({3, 0, 255}) + model);
  seeds.write("stored_folder", bytes_of({3, 2, 23}) + model);
}

void watch_frames(Seeds& seeds) {
  std::string stream;
  for (const auto type : {WatchFrameType::kHello, WatchFrameType::kWelcome, WatchFrameType::kFault,
                          WatchFrameType::kWaiting, WatchFrameType::kGoodbye}) {
    stream += encode_watch_frame({type, 3, Code::kOk, "token"});
    seeds.write("watch_frame", bytes_of({7}) + stream);
  }
}

void rendezvous(Seeds& seeds) {
  const std::string node = bytes_of(uint32_t{2});
  seeds.write("rendezvous", node + encode_member({1, 4711, "host-1", "GPU-0a1b2c3d"}));
  for (const char* text : {"node[01-04,7],other", "a[1,3]-[5-6]b", "4(x2),3", "40GiB", "1.5 MiB"}) {
    seeds.write("rendezvous", node + text);
  }
}

void plans(Seeds& seeds) {
  for (const auto& [type, name] :
       {std::pair(ComputeType::kBf16, "gpt2-nano"), std::pair(ComputeType::kFp32, "opt-nano"),
        std::pair(ComputeType::kFp16, "llama-nano")}) {
    Result<planner::TransformerConfig> config = planner::transformer_config(name);
    ELIXIR_CHECK(config.ok(), "{}", config.status().message());
    config->layers = 1;
    const planner::ModelProfile profile = planner::testing::gpt_profile(
        *config, {.batch = 1, .seq = 64, .checkpointed = type != ComputeType::kFp32, .type = type});
    seeds.write("profile", planner::to_json(profile));
    seeds.write("make_plan", bytes_of({0, 0, 0}) + planner::to_json(profile));
    const Result<planner::PlannedStep> planned =
        planner::make_plan(profile, planner::testing::a100_server(1), {});
    ELIXIR_CHECK(planned.ok(), "{}", planned.status().message());
    seeds.write("plan", planner::to_json(planned->plan));
  }
  planner::ModelProfile measured;
  measured.params = {{"w", 64}, {"tied", 8, true}, {"frozen", 8, false, true, 1}};
  measured.steps = {{0}, {1, 2}, {1}, {0}};
  measured.checkpoint_regions = {{0, 1}, {2, 3}};
  measured.step_flops = {1, 2, 3, 4};
  measured.step_work = {{.bytes = 10, .kernels = 1},
                        {.products = {{1, 2, 3, 4}}, .attention_flops = 1, .attention_head = 64},
                        {.products = {{1, 2, 3, 4}, {8, 2, 2, 2}}, .kernels = 2},
                        {}};
  measured.gradient_after = {3, 2, 3};
  measured.activation_curve = {1, 2, 3, 4};
  measured.measured = true;
  seeds.write("profile", planner::to_json(measured));
  seeds.write("make_plan", bytes_of({0, 1, 2}) + planner::to_json(measured));
}

// The first byte is what a command line says in the file's place.
void machines(Seeds& seeds) {
  std::vector<std::string> files = seeds.texts_in("examples/machines");
  files.push_back(seeds.text_of("examples/machine_a100x4.json"));
  const planner::Machine machine = planner::testing::a100_server(2);
  files.push_back(planner::to_json(planner::ProbedMachine{machine, "cpu", {"a note"}}));
  for (const std::string& file : files) {
    seeds.write("machine", bytes_of({0}) + file);
    seeds.write("machine", bytes_of({7, 8, 4, 25}) + file);
    seeds.write("make_plan", bytes_of({1, 0, 0}) + file);
  }
}

void texts(Seeds& seeds) {
  for (const std::string& file : seeds.texts_in("examples/configs")) {
    seeds.write("model_config", file);
  }
  seeds.write("status", kStatus);
  seeds.write("safetensors", bytes_of(uint64_t{44}) + kSafetensors);
  const std::string_view header = kSafetensors;
  seeds.write("stored_model", bytes_of({0}) + bytes_of(uint64_t{header.size()}) +
                                  std::string(header) + std::string(44, 'x'));
  seeds.write("stored_model",
              bytes_of({1}) + R"({"metadata":{"total_size":16},"weight_map":{"a":"a.safetensors",
"b":"a.safetensors"}})");
  seeds.write("stored_model", bytes_of({1}) + R"({"weight_map":{"b":"b.safetensors"}})");
  // elixird's file has every limit as a comment; here all together and each alone is in force.
  const std::string file = seeds.text_of("systemd/elixird.toml");
  const std::regex limit("# ([a-z_]+ = [^\n]*\n)");
  std::string limits;
  for (std::sregex_iterator at(file.begin(), file.end(), limit), end; at != end; ++at) {
    seeds.write("config", (*at)[1].str());
    limits += (*at)[1];
  }
  seeds.write("config", limits);
}

}  // namespace
}  // namespace elixir::fuzz

int main(int argc, char** argv) {
  using namespace elixir::fuzz;
  if (argc != 3) {
    std::cerr << "usage: fuzz_seeds REPOSITORY FOLDER\n";
    return 2;
  }
  Seeds seeds(argv[1], argv[2]);
  messages(seeds);
  tables(seeds);
  details(seeds);
  manifests(seeds);
  stored_folders(seeds);
  watch_frames(seeds);
  rendezvous(seeds);
  plans(seeds);
  machines(seeds);
  texts(seeds);
  seeds.write("pickle", real_pickle());
  return 0;
}
