#include "checkpoint/details.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::checkpoints {
namespace {

using nlohmann::json;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
std::string string_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Details of_rank_0() {
  Details details;
  details.shapes = {{3, 5}, {}, {7, 0}};
  details.extras.push_back({{"mask", find_dtype("BOOL"), {3}}, bytes_of("abc")});
  details.extras.push_back({{"seen \xc3\xa9", find_dtype("I64"), {}}, bytes_of("12345678")});
  details.extras.push_back({{"nothing", find_dtype("F32"), {2, 0}}, {}});
  details.manifest.step = 1000;
  details.manifest.groups = {{.lr = 1e-3, .weight_decay = 0.1, .hyper = {0.9, 0.95, 1e-8}}};
  details.manifest.loss_scale = {.value = 65536, .good_steps = 7};
  details.manifest.program = "{\"data\": 12}";
  details.keep = {.last = 3, .every = 10'000};
  details.shadow_bytes = 0;
  details.device_hash = UINT64_MAX;
  details.files = {{"config.json", bytes_of("{}")}, {"user/empty", {}}};
  details.updates = {{2, 999}};
  details.ignored = {"lm_head.weight"};
  return details;
}

void expect_equal(const Details& a, const Details& b) {
  EXPECT_EQ(a.shapes, b.shapes);
  EXPECT_EQ(a.manifest, b.manifest);
  EXPECT_EQ(a.keep.last, b.keep.last);
  EXPECT_EQ(a.keep.every, b.keep.every);
  EXPECT_EQ(a.shadow_bytes, b.shadow_bytes);
  EXPECT_EQ(a.device_hash, b.device_hash);
  EXPECT_EQ(a.updates, b.updates);
  EXPECT_EQ(a.ignored, b.ignored);
  const auto parts = [](const Details& of) {
    std::vector<std::tuple<std::string, const Dtype*, std::vector<int64_t>, std::vector<std::byte>>>
        all;
    for (const auto& extra : of.extras) {
      all.emplace_back(extra.name, extra.dtype, extra.shape, extra.bytes);
    }
    for (const auto& file : of.files) all.push_back({file.name, nullptr, {}, file.bytes});
    return all;
  };
  EXPECT_EQ(parts(a), parts(b));
}

uint64_t length_of(int fd) {
  struct stat about {};
  EXPECT_EQ(::fstat(fd, &about), 0);
  return static_cast<uint64_t>(about.st_size);
}

TEST(Details, WhatIsWrittenIsRead) {
  Details of_another_rank;
  of_another_rank.files = {{"user/rank-1.bin", bytes_of("state")}};
  for (const Details& details : {of_rank_0(), of_another_rank, Details()}) {
    const UniqueFd fd = must(write_details(details));
    const Details read = must(read_details(fd.get(), length_of(fd.get())));
    expect_equal(read, details);
    // elixird may read it as often as it likes, and it is the same each time.
    EXPECT_TRUE(read_details(fd.get(), length_of(fd.get())).ok());
    EXPECT_EQ(encode_details(details).size(), length_of(fd.get()));
  }
}

TEST(Details, WhoWroteThemCannotChangeThem) {
  const UniqueFd fd = must(write_details(of_rank_0()));
  EXPECT_LT(::pwrite(fd.get(), "x", 1, 0), 0);
  EXPECT_LT(::ftruncate(fd.get(), 0), 0);
  EXPECT_LT(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
}

std::string refusal(int fd, uint64_t bytes) {
  return refusal_of(read_details(fd, bytes).status(), Code::kProtocol);
}

TEST(Details, DescriptorsThatAreNoSealedMemfdAreNotRead) {
  const std::vector<std::byte> good = encode_details(of_rank_0());
  const UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::write(unsealed.get(), good.data(), good.size()), std::ssize(good));
  EXPECT_THAT(refusal(unsealed.get(), good.size()), HasSubstr("no sealed memfd"));
  const TemporaryFolder folder;
  const UniqueFd file(::open(folder.write("file", string_of(good)).c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(refusal(file.get(), good.size()), HasSubstr("no sealed memfd"));
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const UniqueFd reader(pipe[0]), writer(pipe[1]);
  EXPECT_THAT(refusal(reader.get(), 100), HasSubstr("no sealed memfd"));
  EXPECT_THAT(refusal(-1, 100), HasSubstr("no sealed memfd"));
}

TEST(Details, ALengthThatIsNotTheirsIsRefused) {
  const UniqueFd fd = must(write_details(of_rank_0()));
  const uint64_t length = length_of(fd.get());
  for (const uint64_t said :
       {uint64_t{0}, length - 1, length + 1, kMaxDetailsBytes + 1, UINT64_MAX}) {
    EXPECT_THAT(refusal(fd.get(), said), HasSubstr("said to be"));
  }
}

// Cut there, they are refused; of another byte they may be others, as a digit or a buffer's are.
TEST(Details, WhateverIsWrongAtAnyByteIsTheTrainersFault) {
  const std::vector<std::byte> good = encode_details(of_rank_0());
  ASSERT_TRUE(decode_details(good).ok());
  size_t refused = 0;
  const auto decode = [&](std::span<const std::byte> bytes) {
    const Result<Details> read = decode_details(bytes);
    if (read.ok()) return true;
    ++refused;
    EXPECT_EQ(read.status().code(), Code::kProtocol);
    return false;
  };
  for (size_t at = 0; at < good.size(); ++at) {
    EXPECT_FALSE(decode(std::span(good).first(at))) << at;
    for (const int flip : {1, 0x20, 0x80}) {
      std::vector<std::byte> other = good;
      other[at] ^= static_cast<std::byte>(flip);
      decode(other);
    }
  }
  EXPECT_GT(refused, 2 * good.size());
  std::vector<std::byte> longer = good;
  longer.push_back({});
  EXPECT_THAT(decode_details(longer).status().message(),
              HasSubstr("1 bytes that belong to nothing"));
}

// The JSON of good details with one field another, and bytes behind it.
std::string field_refusal(const std::string& field, const json& value,
                          const std::string& behind = "") {
  json head = {{"manifest_bytes", 0},
               {"shapes", json::array()},
               {"extras", json::array()},
               {"files", json::array()},
               {"updates", json::array()},
               {"ignored", json::array()},
               {"keep", {{"last", 0}, {"every", 0}}}};
  const auto encode = [&] {
    const std::string text = head.dump();
    const uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
  };
  EXPECT_TRUE(decode_details(bytes_of(encode())).ok());  // else it would be refused for that
  head[field] = value;
  SCOPED_TRACE(value);
  return refusal_of(decode_details(bytes_of(encode() + behind)).status(), Code::kProtocol);
}

std::string entries_refusal(const std::string& field, const std::vector<json>& entries,
                            const std::string& behind = "") {
  return field_refusal(field, json(entries), behind);
}

TEST(Details, NumbersThatAreNoneAreRefused) {
  for (const json& wrong : {json(-1), json(1.5), json("1"), json(), json::array(), json(true)}) {
    EXPECT_THAT(field_refusal("shadow_bytes", wrong), HasSubstr("shadow_bytes"));
    EXPECT_THAT(field_refusal("device_hash", wrong), HasSubstr("device_hash"));
    EXPECT_THAT(field_refusal("manifest_bytes", wrong), HasSubstr("manifest_bytes"));
    field_refusal("keep", wrong);
    EXPECT_THAT(field_refusal("keep", {{"last", wrong}, {"every", 0}}), HasSubstr("last"));
    if (!wrong.is_array()) {
      EXPECT_THAT(field_refusal("shapes", wrong), HasSubstr("shapes"));
    }
    EXPECT_THAT(field_refusal("shapes", json::array({json::array({wrong})})),
                HasSubstr("dimension"));
    field_refusal("updates", json::array({json::array({0, wrong})}));
    field_refusal("updates", json::array({json::array({wrong, 0})}));
  }
  EXPECT_THAT(field_refusal("ignored", json::array({7})), HasSubstr("ignored"));
  EXPECT_THAT(field_refusal("keep", {{"last", uint64_t{1} << 32}, {"every", 0}}),
              HasSubstr("last"));
  EXPECT_THAT(field_refusal("shapes", json::array({json::array({uint64_t{1} << 63})})),
              HasSubstr("dimension"));
  EXPECT_THAT(field_refusal("shapes", json::array({std::vector<int>(17, 1)})),
              HasSubstr("at most 16"));
  EXPECT_THAT(field_refusal("updates", json::array({json::array({1 << 20, 1})})),
              HasSubstr("parameter"));
  EXPECT_THAT(field_refusal("updates", json::array({json::array({1})})), HasSubstr("pairs"));
  EXPECT_THAT(field_refusal("updates", json::array({json::array({1, 1}), json::array({1, 2})})),
              HasSubstr("two counts"));
  EXPECT_THAT(field_refusal("shapes", json::parse("[[[[[[]]]]]]")), HasSubstr("deeper"));
  EXPECT_THAT(field_refusal("shapes", std::vector<std::vector<int>>((1 << 20) + 1)),
              HasSubstr("at most 1048576"));
}

json extra(const std::string& name, const std::string& dtype, const json& shape, uint64_t bytes) {
  return {{"name", name}, {"dtype", dtype}, {"shape", shape}, {"bytes", bytes}};
}

TEST(Details, TensorsThatContradictThemselvesAreRefused) {
  const json one = json::array({1});
  EXPECT_THAT(entries_refusal("extras", {extra("x", "F32", one, 3)}, "abc"), HasSubstr("'x'"));
  EXPECT_THAT(entries_refusal("extras", {extra("x", "F32", one, 4)}, "abc"), HasSubstr("bytes"));
  EXPECT_THAT(entries_refusal("extras", {extra("x", "F33", one, 4)}, "abcd"), HasSubstr("'x'"));
  EXPECT_THAT(entries_refusal("extras", {extra("", "U8", one, 1)}, "a"), HasSubstr("empty"));
  EXPECT_THAT(entries_refusal("extras", {extra(std::string(1057, 'x'), "U8", one, 1)}, "a"),
              HasSubstr("1056"));
  EXPECT_THAT(entries_refusal("extras", {extra("x", "U8", one, 1), extra("x", "U8", one, 1)}, "ab"),
              HasSubstr("another's"));
  const int64_t half = int64_t{1} << 32;
  EXPECT_THAT(entries_refusal("extras", {extra("x", "U8", {half, half}, 0)}), HasSubstr("'x'"));
  EXPECT_THAT(entries_refusal("extras", {extra("x", "U8", one, UINT64_MAX)}, "a"),
              HasSubstr("bytes"));
  // Many that would each be as long as all there is.
  EXPECT_THAT(
      entries_refusal(
          "extras", {extra("x", "U8", json::array({2}), 2), extra("y", "U8", json::array({2}), 2)},
          "ab"),
      HasSubstr("bytes"));
  EXPECT_THAT(entries_refusal("extras", {1}), HasSubstr("object"));
}

json file(const std::string& name, uint64_t bytes) { return {{"name", name}, {"bytes", bytes}}; }

TEST(Details, FilesMayNotLeaveTheFolderNorReplaceItsOwn) {
  for (const char* const name :
       {"", ".", "..", "../x", "a/../b", "/etc/passwd", "a/b/c", "a//b", "user/", "elixir.json",
        "model.safetensors.index.json", "model-00001-of-00001.safetensors", "user/x.safetensors",
        "optimizer", "optimizer/x", "a b", "caf\xc3\xa9"}) {
    EXPECT_FALSE(check_user_file_name(name).ok()) << name;
    EXPECT_NE(entries_refusal("files", {file(name, 0)}), "") << name;
    Details details;
    details.files = {{name, {}}};
    expect_refused(write_details(details).status(), Code::kInvalidArgument, {name});
  }
  EXPECT_FALSE(check_user_file_name(std::string("a\0b", 3)).ok());
  EXPECT_THAT(entries_refusal("files", {file("x", 0), file("x", 0)}),
              HasSubstr("two files named 'x'"));
  EXPECT_THAT(entries_refusal("files", {file("x", 2)}, "a"), HasSubstr("bytes"));
  for (const char* const name :
       {"config.json", "user/rank-0.bin", "user/elixir.json", "..a", "a.."}) {
    EXPECT_TRUE(check_user_file_name(name).ok()) << name;
  }
}

TEST(Details, AManifestThatIsNoneIsRefused) {
  EXPECT_THAT(field_refusal("manifest_bytes", 2, "{}"), HasSubstr("manifest"));
  EXPECT_THAT(field_refusal("manifest_bytes", uint64_t{1} << 40), HasSubstr("manifest_bytes"));
}

TEST(Details, BytesThatAreNoDetailsAreRefused) {
  const uint64_t huge = UINT64_MAX;
  const std::string length(reinterpret_cast<const char*>(&huge), sizeof huge);
  for (const std::string& text :
       {std::string(), std::string(7, 'x'), std::string(8, '\0'), length, length + "{}",
        std::string("\2\0\0\0\0\0\0\0[]", 10), std::string("\4\0\0\0\0\0\0\0null", 12),
        std::string("\1\0\0\0\0\0\0\0{", 9)}) {
    expect_refused(decode_details(bytes_of(text)).status(), Code::kProtocol, {});
  }
  std::string deep(1'000'000, '[');
  const uint64_t deep_length = deep.size();
  deep.insert(0, reinterpret_cast<const char*>(&deep_length), sizeof deep_length);
  EXPECT_THAT(decode_details(bytes_of(deep)).status().message(), HasSubstr("deeper than"));
}

TEST(Details, WhatElixirdWouldNotReadIsNotSent) {
  Details names;
  for (int i = 0; i < 70; ++i) names.ignored.emplace_back(1 << 20, 'x');
  Details groups;
  for (int i = 0; i < 70; ++i)
    groups.manifest.group_of[std::string(1 << 20, 'x') + char('!' + i)] = 1;
  for (const Details& details : {names, groups}) {
    expect_refused(write_details(details).status(), Code::kInvalidArgument, {});
  }
}

// Sparse, so that the test takes no memory; a sealed memfd of 5 GiB.
TEST(Details, MoreThanTheLimitIsNotRead) {
  const UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const uint64_t bytes = kMaxDetailsBytes + 4096;
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  ASSERT_EQ(
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), 0);
  EXPECT_THAT(refusal(fd.get(), bytes), HasSubstr("at most"));
}

}  // namespace
}  // namespace elixir::checkpoints
