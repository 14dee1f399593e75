#include "base/dynamic_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/subprocess.h"
#include "tests/support/outcomes.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr char kVariable[] = "ELIXIR_TEST_LIBRARY";

class DynamicLibraryTest : public ::testing::Test {
 protected:
  DynamicLibraryTest() { ::unsetenv(kVariable); }
  ~DynamicLibraryTest() override { ::unsetenv(kVariable); }

  LibrarySearch search_{.file_name = "libelixir_nowhere.so",
                        .variable = kVariable,
                        .build_path = "",
                        .remedy = "build it"};
  TemporaryFolder folder_;
};

TEST_F(DynamicLibraryTest, LooksInDocumentedOrder) {
  search_.build_path = "/build/lib/libelixir_nowhere.so";
  EXPECT_THAT(library_candidates(search_),
              ElementsAre(program_folder() + "/libelixir_nowhere.so",
                          program_folder() + "/../lib/libelixir_nowhere.so",
                          "/build/lib/libelixir_nowhere.so", "libelixir_nowhere.so"));
  ::setenv(kVariable, "/mine.so", 1);
  EXPECT_THAT(library_candidates(search_), ElementsAre("/mine.so"));
  ::setenv(kVariable, "", 1);
  EXPECT_EQ(library_candidates(search_).size(), 4u);
}

TEST_F(DynamicLibraryTest, LoadsAndCalls) {
  search_.build_path = ANSWER_LIBRARY;
  const Result<DynamicLibrary> library = DynamicLibrary::load(search_);
  ASSERT_TRUE(library.ok()) << library.status().message();
  EXPECT_EQ(library->path(), ANSWER_LIBRARY);
  const auto answer = library->function<int()>("elixir_test_answer");
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ((*answer)(), 42);
}

TEST_F(DynamicLibraryTest, TheVariableWinsAndIsLast) {
  search_.build_path = ANSWER_LIBRARY;
  ::setenv(kVariable, folder_.path("absent.so").c_str(), 1);
  const Result<DynamicLibrary> library = DynamicLibrary::load(search_);
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), Code::kUnavailable);
  EXPECT_THAT(library.status().message(),
              AllOf(HasSubstr("absent.so"), HasSubstr("was not found"), EndsWith("; build it")));
}

TEST_F(DynamicLibraryTest, ABareNameIsLookedUpByTheLoader) {
  search_.file_name = "libc.so.6";
  const Result<DynamicLibrary> library = DynamicLibrary::load(search_);
  ASSERT_TRUE(library.ok()) << library.status().message();
  EXPECT_THAT(library->path(), EndsWith("/libc.so.6"));
}

TEST_F(DynamicLibraryTest, NotFoundSaysWhereWasLooked) {
  search_.build_path = "/build/lib/libelixir_nowhere.so";
  const Result<DynamicLibrary> library = DynamicLibrary::load(search_);
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), Code::kUnavailable);
  for (const std::string& candidate : library_candidates(search_)) {
    EXPECT_THAT(library.status().message(), HasSubstr(candidate));
  }
}

TEST_F(DynamicLibraryTest, AFileThatIsNoLibraryIsNamedWithTheLoadersText) {
  search_.build_path = folder_.write("broken.so", std::string(4096, 'x'));
  const Result<DynamicLibrary> library = DynamicLibrary::load(search_);
  ASSERT_FALSE(library.ok());
  test::expect_refused(library.status(), Code::kUnavailable,
                       {"broken.so is there and cannot be loaded", "ELF", kVariable});
}

TEST_F(DynamicLibraryTest, AMissingFunctionIsAnotherVersion) {
  search_.build_path = ANSWER_LIBRARY;
  const Result<DynamicLibrary> library = DynamicLibrary::load(search_);
  ASSERT_TRUE(library.ok());
  const auto absent = library->function<int()>("elixir_test_question");
  ASSERT_FALSE(absent.ok());
  test::expect_refused(absent.status(), Code::kVersionMismatch,
                       {"elixir_test_question", ANSWER_LIBRARY});
}

}  // namespace
}  // namespace elixir
