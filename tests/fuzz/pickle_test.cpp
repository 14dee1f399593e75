// What reads pickles of torch.save(): real ones, hostile ones, and what is cut short.

#include "models/pickle.h"

#include <string>
#include <vector>

#include "tests/fuzz/real_pickle.h"
#include "tests/support/matchers.h"

namespace elixir::pickle {
namespace {

using namespace std::string_literals;
using fuzz::kPickledRebuild;
using fuzz::kPickledStorage;
using fuzz::real_pickle;

Result<Document> parse(const std::string& bytes) {
  return Document::parse(std::vector<char>(bytes.begin(), bytes.end()));
}

TEST(Pickle, ReadsWhatTorchWrites) {
  const Document document = must(parse(real_pickle()));
  const Value& root = document.root();
  ASSERT_EQ(root.kind, Kind::kDict);
  ASSERT_NE(document.find(root, "lr"), nullptr);
  EXPECT_EQ(document.find(root, "lr")->integer, 1);
  const Value& betas = *document.find(root, "betas");
  ASSERT_EQ(betas.kind, Kind::kTuple);
  EXPECT_EQ(document.at(betas.items[1]).number, 0.999);
  const Value& state = *document.find(root, "state");
  ASSERT_EQ(state.items.size(), 2u);
  EXPECT_EQ(document.at(state.items[0]).integer, 0);
  const Value& entry = document.at(state.items[1]);
  const Tensor& step = document.tensor(*document.find(entry, "step"));
  EXPECT_TRUE(step.sizes.empty());
  EXPECT_EQ(step.storage_numel, 1u);
  const Tensor& exp_avg = document.tensor(*document.find(entry, "exp_avg"));
  EXPECT_EQ(exp_avg.type, "Float");
  EXPECT_EQ(exp_avg.key, "1");
  EXPECT_EQ(exp_avg.storage_numel, 6u);
  EXPECT_EQ(exp_avg.sizes, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(exp_avg.strides, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(document.find(root, "absent"), nullptr);
}

TEST(Pickle, NumbersOfEveryLength) {
  const struct {
    std::string bytes;
    int64_t number;
  } cases[] = {{"K\xff.", 255},
               {"M\x01\x02.", 513},
               {"J\xff\xff\xff\xff.", -1},
               {"\x8a\0."s, 0},
               {"\x8a\x01\x80.", -128},
               {"\x8a\x02\xff\0."s, 255},
               {"\x8a\x08\0\0\0\0\0\0\0\x80."s, INT64_MIN}};
  for (const auto& one : cases) {
    const Document document = must(parse(one.bytes));
    EXPECT_EQ(document.root().kind, Kind::kInt);
    EXPECT_EQ(document.root().integer, one.number);
  }
}

TEST(Pickle, NothingIsCalled) {
  // os.system('true'), as exploits have it.
  const Document document = must(parse("cos\nsystem\n(X\x04\0\0\0truetR."s));
  EXPECT_EQ(document.root().kind, Kind::kOpaque);
  EXPECT_EQ(document.root().text, "os.system");
}

TEST(Pickle, RefusesWhatIsNoneOrHostile) {
  const std::string tensor =
      kPickledRebuild + kPickledStorage + "0q\x07X\x03\0\0\0cpuq\x0dK\x06tq\x0eQ"s;
  const struct {
    std::string bytes;
    const char* says;
  } cases[] = {
      {"", "cut short"},
      {"\x80\x02}", "cut short"},
      {"\x80\x09N.", "later protocol"},
      {".", "takes a value from an empty stack"},
      {"(.", "takes a value from an empty stack"},
      {"t.", "has no mark"},
      {"h\x05.", "takes a value from an empty stack"},
      {"0.", "takes a value from an empty stack"},
      {"N(K\x01K\x02u.", "not a container"},
      {"}(K\x01u.", "key without a value"},
      {"(K\x01"
       "d.",
       "key without a value"},
      {"X\xff\xff\xff\xffz.", "cut short"},
      {"\x8d\xff\xff\xff\xff\xff\xff\xff\xffz.", "cut short"},
      {"i.", "opcode"},
      {"(K\x01K\x02tQ.", "storage that is not one"},
      {"K\x01Q.", "storage that is not one"},
      {"c" + std::string(600, 'a') + "\nb\n.", "class without a name"},
      // Of six elements: the seventh, and products that wrap around.
      {tensor + "K\x01K\x06\x85K\x01\x85\x89)tR.", "leaves its storage"},
      {tensor + "K\0K\x02K\x03\x86K\x04K\x01\x86\x89)tR."s, "leaves its storage"},
      {tensor +
           "K\0\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"
           "\x85\x89)tR."s,
       "leaves its storage"},
      {tensor + "K\0J\xff\xff\xff\xff\x85K\x01\x85\x89)tR."s, "without a valid shape"},
      {tensor + "K\0K\x02\x85K\x01K\x01\x86\x89)tR."s, "without a valid shape"},
      {kPickledRebuild + "(K\x01K\0))tR."s, "without a storage"},
  };
  for (const auto& one : cases) {
    expect_refused(parse(one.bytes).status(), Code::kBadInput, {one.says});
  }
}

// A list in a list in a list, a million deep, and one that holds itself: nothing recurses.
TEST(Pickle, DepthAndCyclesAreSurvived) {
  const size_t depth = 1'000'000;
  const Document deep = must(parse(std::string(depth, ']') + std::string(depth - 1, 'a') + "."));
  EXPECT_TRUE(parse("]q\0h\0a."s).ok());
}

TEST(Pickle, MemoryIsBounded) {
  EXPECT_THAT(parse(std::string(kMaxBytes + 1, 'N')).status().message(), HasSubstr("the most"));
  EXPECT_THAT(parse(std::string(kMaxValues + 1, 'N')).status().message(), HasSubstr("too many"));
}

// (Any other change of one: fuzz_corpus_test.)
TEST(Pickle, ARealOneThatIsCutShortIsRefused) {
  const std::string real = real_pickle();
  for (size_t length = 0; length < real.size(); ++length) {
    EXPECT_FALSE(parse(real.substr(0, length)).ok()) << length;
  }
}

}  // namespace
}  // namespace elixir::pickle
