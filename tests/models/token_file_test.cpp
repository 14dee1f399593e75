#include "models/token_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

class TokenFileTest : public ::testing::Test {
 protected:
  // Every refusal names the file and is kBadInput; the rest of it is returned.
  std::string refusal(const std::string& path, int64_t vocabulary = 256) {
    TokenFileOptions options{.vocabulary = vocabulary};
    if (path.ends_with(".bin")) options.bare = TokenType::kUint16;
    const Result<TokenFile> file = TokenFile::open(path, options);
    if (file.ok()) return "accepted";
    expect_refused(file.status(), Code::kBadInput, {path});
    return file.status().message();
  }

  TemporaryFolder folder_;
};

TEST_F(TokenFileTest, TextIsBytes) {
  const TokenFile file = must(TokenFile::open(folder_.write("a.txt", "a\xc3\xa9\n\tb"), {}));
  EXPECT_TRUE(file.text());
  ASSERT_EQ(file.tokens(), 6);
  std::vector<int64_t> tokens(6);
  ASSERT_TRUE(file.read(0, tokens).ok());
  EXPECT_THAT(tokens, ElementsAre('a', 0xc3, 0xa9, '\n', '\t', 'b'));
}

// Bytes of a number, little-endian.
template <typename Number>
std::string bytes(std::initializer_list<Number> numbers) {
  std::string text;
  for (const Number number : numbers) {
    text.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return text;
}

std::string own_header(const std::string& type, uint64_t vocabulary, uint64_t tokens,
                       uint32_t version = 1) {
  std::string name = type;
  name.resize(16, '\0');
  return "ELXTOKEN" + bytes<uint32_t>({version, 64}) + name +
         bytes<uint64_t>({vocabulary, tokens}) + std::string(16, '\0');
}

std::string numpy_header(const std::string& type, const std::string& shape, uint8_t version = 1) {
  const std::string quoted = type.starts_with('[') ? type : "'" + type + "'";
  std::string text = "{'descr': " + quoted + ", 'fortran_order': False, 'shape': " + shape + ", }";
  while ((text.size() + (version == 1 ? 10 : 12)) % 64 != 63) text += ' ';
  text += '\n';
  const std::string length = version == 1 ? bytes<uint16_t>({static_cast<uint16_t>(text.size())})
                                          : bytes<uint32_t>({static_cast<uint32_t>(text.size())});
  return "\x93NUMPY" + std::string{static_cast<char>(version), '\0'} + length + text;
}

std::string llmc_header(int32_t magic, int32_t version, int32_t tokens) {
  std::string text = bytes<int32_t>({magic, version, tokens});
  text.resize(1024, '\0');
  return text;
}

// Whatever says how wide they are: the same tokens.
TEST_F(TokenFileTest, EveryFormatHasTheSameTokens) {
  const auto u16 = bytes<uint16_t>({0, 50256, 7, 300});
  const auto u32 = bytes<uint32_t>({0, 50256, 7, 300});
  const auto i64 = bytes<int64_t>({0, 50256, 7, 300});
  struct Case {
    const char* name;
    std::string contents;
    std::optional<TokenType> bare = {};
  };
  const Case cases[] = {
      {"bare-16.bin", u16, TokenType::kUint16},
      {"bare-32.bin", u32, TokenType::kUint32},
      {"bare-i32.bin", u32, TokenType::kInt32},
      {"bare.u16", u16, TokenType::kUint16},
      {"own-16.tokens", own_header("uint16", 50257, 4) + u16},
      {"own-32.bin", own_header("uint32", 50257, 4) + u32},
      {"own-i32", own_header("int32", 50257, 4) + u32, TokenType::kUint16},  // the header counts
      {"a.npy", numpy_header("<u2", "(4,)") + u16},
      {"b.npy", numpy_header("<u4", "(4,)", 2) + u32},
      {"c.npy", numpy_header("<i4", "(4,)", 3) + u32},
      {"d.npy", numpy_header("<i8", "(4,)") + i64},
      {"e.npy", numpy_header("<u8", "(4,)") + i64},
      {"not-called-npy.bin", numpy_header("<i8", "(4,)") + i64},
      {"llmc.bin", llmc_header(20240520, 1, 4) + u16},
      {"llmc-llama3.bin", llmc_header(20240801, 7, 4) + u32},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const TokenFile file = must(TokenFile::open(folder_.write(one.name, one.contents),
                                                {.vocabulary = 50257, .bare = one.bare}));
    EXPECT_FALSE(file.text());
    ASSERT_EQ(file.tokens(), 4);
    std::vector<int64_t> tokens(3);
    ASSERT_TRUE(file.read(1, tokens).ok());
    EXPECT_THAT(tokens, ElementsAre(50256, 7, 300));
  }
}

TEST_F(TokenFileTest, BareTokensSayHowWideTheyAre) {
  const std::string path = folder_.write("a.bin", bytes<uint32_t>({1, 2, 3}));
  expect_refused(TokenFile::open(path, {}).status(), Code::kBadInput,
                 {path, "--tokens-dtype", "scripts/tokenize_text.py"});
}

TEST_F(TokenFileTest, RefusesDamagedAndForeignHeaders) {
  const auto two = bytes<uint16_t>({1, 2});
  const struct {
    const char* name;
    std::string contents;
    const char* says;
  } cases[] = {
      {"short.tokens", own_header("uint16", 256, 2).substr(0, 40), "damaged"},
      {"type.tokens", own_header("float", 256, 2) + two, "damaged"},
      {"version.tokens", own_header("uint16", 256, 2, 2) + two, "version 2"},
      {"cut.tokens", own_header("uint16", 256, 3) + two, "3 tokens of 2 bytes, and 4 bytes"},
      {"more.tokens", own_header("uint16", 256, 1) + two, "1 tokens of 2 bytes, and 4 bytes"},
      {"many.tokens", own_header("uint16", 256, uint64_t{1} << 63) + two, "truncated"},
      {"none.tokens", own_header("uint16", 256, 0), "no token"},
      {"large.tokens", own_header("uint16", 257, 2) + two,
       "vocabulary of 257, and the model's is 256"},
      {"float.npy", numpy_header("<f4", "(1,)") + two, "type <f4"},
      {"fields.npy", numpy_header("[('a', '<u2'), ('b', '<u2')]", "(1,)") + two,
       "type [('a', '<u2'), ('b', '<u2')]"},
      {"big-endian.npy", numpy_header(">u2", "(2,)") + two, "type >u2"},
      {"table.npy", numpy_header("<u2", "(1, 2)") + two, "shape (1, 2)"},
      {"scalar.npy", numpy_header("<u2", "()") + two, "shape ()"},
      {"cut.npy", numpy_header("<u2", "(3,)") + two, "truncated"},
      {"short.npy", numpy_header("<u2", "(2,)").substr(0, 30), "damaged"},
      {"llmc.bin", llmc_header(20240520, 1, 3) + two, "truncated"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    EXPECT_THAT(refusal(folder_.write(one.name, one.contents)), HasSubstr(one.says));
  }
}

TEST_F(TokenFileTest, BytesOfBothSignsAreTokens) {
  for (const char* type : {"|u1", "|i1"}) {
    const std::string path = folder_.write("a.npy", numpy_header(type, "(3,)") + "\x01\x7f\x02");
    std::vector<int64_t> tokens(3);
    ASSERT_TRUE(must(TokenFile::open(path, {})).read(0, tokens).ok());
    EXPECT_THAT(tokens, ElementsAre(1, 127, 2)) << type;
  }
  const std::string negative = folder_.write("b.npy", numpy_header("|i1", "(1,)") + "\xff");
  EXPECT_THAT(refusal(negative), HasSubstr("token -1 at position 0"));
}

// A flag that would be passed over in silence.
TEST_F(TokenFileTest, TextIsNoBareTokens) {
  const std::string path = folder_.write("a.txt", "text");
  for (const bool bytes : {false, true}) {
    expect_refused(TokenFile::open(path, {.bare = TokenType::kUint16, .bytes = bytes}).status(),
                   Code::kBadInput, {path, "it is text", "--tokens-dtype"});
  }
}

TEST_F(TokenFileTest, RefusesJsonByNameAndContent) {
  for (const char* name : {"a.jsonl", "a.ndjson", "a.json", "a.JSONL", "a.Json"}) {
    const std::string path = folder_.write(name, "[1]\n");
    expect_refused(TokenFile::open(path, {}).status(), Code::kBadInput, {path, "JSON", "--bytes"});
    EXPECT_TRUE(TokenFile::open(path, {.bytes = true}).ok());
  }
  for (const char* text : {"{int x;}\n", "{\n\"a\": 1}\n", "[1]\n", "a {}\n"}) {
    EXPECT_EQ(refusal(folder_.write("a.txt", text)), "accepted") << text;
  }
  for (const char* before : {"", "\n \t", "\xef\xbb\xbf"}) {
    const std::string path =
        folder_.write("a.txt", std::string(before) + "{\"text\": \"a\"}\n{\"text\": \"b\"}");
    expect_refused(TokenFile::open(path, {}).status(), Code::kBadInput, {path, "JSON", "--bytes"});
    EXPECT_TRUE(TokenFile::open(path, {.bytes = true}).ok());
  }
}

TEST_F(TokenFileTest, LabelsMayBeMaskedAndTokensMayNot) {
  const std::string path = folder_.write("a.bin", bytes<int32_t>({5, -100, 255}));
  const TokenFile labels = must(TokenFile::open(path, {.bare = TokenType::kInt32, .labels = true}));
  std::vector<int64_t> read(3);
  ASSERT_TRUE(labels.read(0, read).ok());
  EXPECT_THAT(read, ElementsAre(5, kMaskedLabel, 255));
  expect_refused(TokenFile::open(path, {.bare = TokenType::kInt32}).status(), Code::kBadInput,
                 {"token -100 at position 1", "--labels"});
  for (const int32_t wrong : {-1, -101, 256}) {
    const std::string bad = folder_.write("bad.bin", bytes<int32_t>({5, wrong}));
    expect_refused(TokenFile::open(bad, {.bare = TokenType::kInt32, .labels = true}).status(),
                   Code::kBadInput,
                   {fmt::format("label {} at position 1 is outside", wrong), "it is not -100"});
  }
  const std::string text = folder_.write("a.txt", "text");
  expect_refused(TokenFile::open(text, {.labels = true}).status(), Code::kBadInput,
                 {"labels are tokens"});
}

// A number of 64 bits that would be inside the vocabulary if its upper half were cut off.
TEST_F(TokenFileTest, NoBitOfATokenIsCutOff) {
  const auto large = bytes<int64_t>({1, (int64_t{1} << 32) + 7});
  EXPECT_THAT(refusal(folder_.write("a.npy", numpy_header("<i8", "(2,)") + large)),
              HasSubstr("token 4294967303 at position 1"));
  const auto negative = bytes<uint64_t>({1, UINT64_MAX});
  EXPECT_THAT(refusal(folder_.write("b.npy", numpy_header("<u8", "(2,)") + negative)),
              HasSubstr("at position 1"));
}

TEST_F(TokenFileTest, RefusesWhatIsNoFile) {
  EXPECT_THAT(refusal(folder_.path("nowhere.txt")),
              AllOf(HasSubstr("No such file"), HasSubstr("give a file that exists")));
  EXPECT_THAT(refusal(folder_.path("")), HasSubstr("a directory"));
  EXPECT_THAT(refusal("https://example.org/a.txt"),
              AllOf(HasSubstr("it is a URL"), HasSubstr("curl -LO https://example.org/a.txt")));
  const std::string fifo = folder_.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(refusal(fifo), HasSubstr("not a regular file"));
}

TEST_F(TokenFileTest, RefusesEmptyFiles) {
  EXPECT_THAT(refusal(folder_.write("empty.txt", "")), HasSubstr("empty"));
  EXPECT_THAT(refusal(folder_.write("empty.bin", "")), HasSubstr("empty"));
}

TEST_F(TokenFileTest, RefusesWhatIsNoText) {
  const std::string text = "some text, then";
  EXPECT_THAT(refusal(folder_.write("nul.txt", text + std::string("\0", 1))),
              AllOf(HasSubstr("NUL byte at offset 15"), HasSubstr("--tokens-dtype")));
  EXPECT_THAT(refusal(folder_.write("utf16.txt", std::string("h\0i\0", 4))), HasSubstr("iconv"));
  for (const char* marked : {"\xff\xfe\x22\x6f\x57\x5b", "\xfe\xff\x6f\x22\x5b\x57"}) {
    EXPECT_THAT(refusal(folder_.write("marked.txt", marked)),
                AllOf(HasSubstr("UTF-16"), HasSubstr("iconv")));
  }
  std::string every_byte;
  for (int byte = 1; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  EXPECT_THAT(refusal(folder_.write("packed.gz", every_byte)), HasSubstr("control characters"));
  // Colours of a terminal's log do not make it binary.
  EXPECT_EQ(refusal(folder_.write("colours.log", "\x1b[31mred\x1b[0m and plain\f\r\n")),
            "accepted");
}

TEST_F(TokenFileTest, RefusesBadBinFiles) {
  EXPECT_THAT(refusal(folder_.write("odd.bin", "abc")),
              AllOf(HasSubstr("3 bytes"), HasSubstr("--tokens-dtype")));
  EXPECT_THAT(refusal(folder_.write_tokens("large.bin", {1, 2, 256, 3})),
              AllOf(HasSubstr("token 256 at position 2"), HasSubstr("tokenizer")));
  EXPECT_EQ(refusal(folder_.write_tokens("large.bin", {1, 2, 256, 3}), 257), "accepted");
}

TEST_F(TokenFileTest, ReportsALateBadTokenWhenItIsRead) {
  std::vector<uint16_t> tokens(TokenFile::kCheckedTokens + 2, 5);
  tokens.back() = 256;
  const TokenFile file =
      must(TokenFile::open(folder_.write_tokens("late.bin", tokens), {.bare = TokenType::kUint16}));
  std::vector<int64_t> last(1);
  EXPECT_TRUE(file.read(file.tokens() - 2, last).ok());
  expect_refused(file.read(file.tokens() - 1, last), Code::kBadInput, {"token 256"});
}

}  // namespace
}  // namespace elixir
