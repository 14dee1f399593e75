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
    const Result<TokenFile> file = TokenFile::open(path, vocabulary);
    if (file.ok()) return "accepted";
    expect_refused(file.status(), Code::kBadInput, {path});
    return file.status().message();
  }

  TemporaryFolder folder_;
};

TEST_F(TokenFileTest, TextIsBytes) {
  const TokenFile file = must(TokenFile::open(folder_.write("a.txt", "a\xc3\xa9\n\tb"), 256));
  EXPECT_FALSE(file.binary());
  ASSERT_EQ(file.tokens(), 6);
  std::vector<int64_t> tokens(6);
  ASSERT_TRUE(file.read(0, tokens).ok());
  EXPECT_THAT(tokens, ElementsAre('a', 0xc3, 0xa9, '\n', '\t', 'b'));
}

TEST_F(TokenFileTest, BinIsUint16) {
  const TokenFile file =
      must(TokenFile::open(folder_.write_tokens("a.bin", {0, 50256, 7, 300}), 50257));
  EXPECT_TRUE(file.binary());
  ASSERT_EQ(file.tokens(), 4);
  std::vector<int64_t> tokens(3);
  ASSERT_TRUE(file.read(1, tokens).ok());
  EXPECT_THAT(tokens, ElementsAre(50256, 7, 300));
}

TEST_F(TokenFileTest, RefusesWhatIsNoFile) {
  EXPECT_THAT(refusal(folder_.path("nowhere.txt")),
              AllOf(HasSubstr("No such file"), HasSubstr("give a file that exists")));
  EXPECT_THAT(refusal(folder_.path("")), HasSubstr("a directory"));
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
              AllOf(HasSubstr("NUL byte at offset 15"), HasSubstr(".bin")));
  EXPECT_THAT(refusal(folder_.write("utf16.txt", std::string("h\0i\0", 4))), HasSubstr("iconv"));
  std::string every_byte;
  for (int byte = 1; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  EXPECT_THAT(refusal(folder_.write("packed.gz", every_byte)), HasSubstr("control characters"));
  // Colours of a terminal's log do not make it binary.
  EXPECT_EQ(refusal(folder_.write("colours.log", "\x1b[31mred\x1b[0m and plain\f\r\n")),
            "accepted");
}

TEST_F(TokenFileTest, RefusesBadBinFiles) {
  EXPECT_THAT(refusal(folder_.write("odd.bin", "abc")),
              AllOf(HasSubstr("odd"), HasSubstr("3 bytes")));
  EXPECT_THAT(refusal(folder_.write_tokens("large.bin", {1, 2, 256, 3})),
              AllOf(HasSubstr("token 256 at position 2"), HasSubstr("--model")));
  EXPECT_EQ(refusal(folder_.write_tokens("large.bin", {1, 2, 256, 3}), 257), "accepted");
}

TEST_F(TokenFileTest, ReportsALateBadTokenWhenItIsRead) {
  std::vector<uint16_t> tokens(TokenFile::kCheckedTokens + 2, 5);
  tokens.back() = 256;
  const TokenFile file = must(TokenFile::open(folder_.write_tokens("late.bin", tokens), 256));
  std::vector<int64_t> last(1);
  EXPECT_TRUE(file.read(file.tokens() - 2, last).ok());
  expect_refused(file.read(file.tokens() - 1, last), Code::kBadInput, {"token 256"});
}

}  // namespace
}  // namespace elixir
