#include "base/dynamic_library.h"

#include <stdlib.h>

#include "base/subprocess.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

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
  search_.lib_subfolders = {"torch215", "torch211"};
  EXPECT_THAT(library_candidates(search_),
              ElementsAre(program_folder() + "/libelixir_nowhere.so",
                          program_folder() + "/../lib/torch215/libelixir_nowhere.so",
                          program_folder() + "/../lib/torch211/libelixir_nowhere.so",
                          program_folder() + "/../lib/libelixir_nowhere.so",
                          "/build/lib/libelixir_nowhere.so", "libelixir_nowhere.so"));
  ::setenv(kVariable, "/mine.so", 1);
  EXPECT_THAT(library_candidates(search_), ElementsAre("/mine.so"));
  ::setenv(kVariable, "", 1);
  EXPECT_EQ(library_candidates(search_).size(), 6u);
}

TEST_F(DynamicLibraryTest, LoadsAndCalls) {
  search_.build_path = ANSWER_LIBRARY;
  const DynamicLibrary library = must(DynamicLibrary::load(search_));
  EXPECT_EQ(library.path(), ANSWER_LIBRARY);
  const auto answer = must(library.function<int()>("elixir_test_answer"));
  EXPECT_EQ(answer(), 42);
}

TEST_F(DynamicLibraryTest, TheVariableWinsAndIsLast) {
  search_.build_path = ANSWER_LIBRARY;
  ::setenv(kVariable, folder_.path("absent.so").c_str(), 1);
  EXPECT_THAT(refusal_of(DynamicLibrary::load(search_).status(), Code::kUnavailable),
              AllOf(HasSubstr("absent.so"), HasSubstr("was not found"), EndsWith("; build it")));
}

TEST_F(DynamicLibraryTest, ABareNameIsLookedUpByTheLoader) {
  search_.file_name = "libc.so.6";
  const DynamicLibrary library = must(DynamicLibrary::load(search_));
  EXPECT_THAT(library.path(), EndsWith("/libc.so.6"));
}

TEST_F(DynamicLibraryTest, NotFoundSaysWhereWasLooked) {
  search_.build_path = "/build/lib/libelixir_nowhere.so";
  const Status status = DynamicLibrary::load(search_).status();
  for (const std::string& candidate : library_candidates(search_)) {
    expect_refused(status, Code::kUnavailable, {candidate});
  }
}

TEST_F(DynamicLibraryTest, AFileThatIsNoLibraryIsNamedWithTheLoadersText) {
  search_.build_path = folder_.write("broken.so", std::string(4096, 'x'));
  expect_refused(DynamicLibrary::load(search_).status(), Code::kUnavailable,
                 {"broken.so exists but cannot be loaded", "ELF", kVariable});
}

TEST_F(DynamicLibraryTest, AMissingFunctionIsAnotherVersion) {
  search_.build_path = ANSWER_LIBRARY;
  const DynamicLibrary library = must(DynamicLibrary::load(search_));
  const auto absent = library.function<int()>("elixir_test_question");
  ASSERT_FALSE(absent.ok());
  expect_refused(absent.status(), Code::kVersionMismatch, {"elixir_test_question", ANSWER_LIBRARY});
}

}  // namespace
}  // namespace elixir
