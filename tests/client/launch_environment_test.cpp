#include "client/ranks/launch_environment.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "client/ranks/read_launch_environment.h"
#include "client/ranks/slurm_lists.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

class LaunchEnvironmentTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "ELIXIR_JOB",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "SLURM_PROCID",
                             "SLURM_STEP_NUM_NODES",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_NTASKS_PER_NODE",
                             "SLURM_JOB_ID",
                             "SLURM_RESTART_COUNT",
                             "SLURM_STEP_ID",
                             "SLURM_NODEID",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_STEP_NODELIST",
                             "SLURM_NODELIST",
                             "SLURM_JOB_NODELIST",
                             "SLURM_LAUNCH_NODE_IPADDR",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_NAMESPACE",
                             "PMIX_RANK",
                             "MV2_COMM_WORLD_RANK",
                             "MV2_COMM_WORLD_SIZE",
                             "MV2_COMM_WORLD_LOCAL_RANK",
                             "MV2_COMM_WORLD_LOCAL_SIZE",
                             "PALS_RANKID",
                             "PALS_LOCAL_RANKID",
                             "PALS_LOCAL_SIZE",
                             "PALS_APID",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMI_LOCAL_RANK",
                             "PMI_LOCAL_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "SLURM_RESTART_COUNT",
                             "OMPI_MCA_ess_base_jobid",
                             "TORCHELASTIC_USE_AGENT_STORE"}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
};

TEST_F(LaunchEnvironmentTest, AloneIsOneRankWithAJobOfItsOwn) {
  const LaunchEnvironment first = *read_launch_environment();
  EXPECT_EQ(first.world_size, 1u);
  EXPECT_EQ(first.starter, "alone");
  EXPECT_NE(first.job, read_launch_environment()->job);
}

TEST_F(LaunchEnvironmentTest, ReadsTorchrun) {
  set("RANK", "5");
  set("WORLD_SIZE", "8");
  set("LOCAL_RANK", "1");
  set("LOCAL_WORLD_SIZE", "4");
  set("MASTER_PORT", "29500");
  const LaunchEnvironment environment = *read_launch_environment();
  EXPECT_EQ(environment.rank, 5u);
  EXPECT_EQ(environment.local_rank, 1u);
  EXPECT_EQ(environment.local_world_size, 4u);
  EXPECT_THAT(environment.job, HasSubstr("29500"));
  set("TORCHELASTIC_RESTART_COUNT", "1");
  EXPECT_NE(environment.job, read_launch_environment()->job);
}

TEST_F(LaunchEnvironmentTest, ReadsSlurmAndOpenMpi) {
  set("SLURM_PROCID", "1");
  set("SLURM_NTASKS", "2");
  set("SLURM_LOCALID", "1");
  set("SLURM_JOB_ID", "77");
  EXPECT_EQ(read_launch_environment()->rank, 1u);
  EXPECT_THAT(read_launch_environment()->job, HasSubstr("77"));
  SetUp();
  set("OMPI_COMM_WORLD_RANK", "2");
  set("OMPI_COMM_WORLD_SIZE", "3");
  set("OMPI_COMM_WORLD_LOCAL_RANK", "2");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "3");
  EXPECT_EQ(read_launch_environment()->starter, "openmpi");
  EXPECT_EQ(read_launch_environment()->local_rank, 2u);
}

// The name by which a launch finds its elixird: the same for all ranks and restarts, another for
// every other launch.
TEST_F(LaunchEnvironmentTest, ALaunchKeepsItsNameWhenItIsStartedAgain) {
  struct Starter {
    std::vector<std::pair<const char*, const char*>> variables;
    const char* restarts;  // "": is not told
    std::vector<std::pair<const char*, const char*>> of_another_launch;
  };
  const std::vector<Starter> starters = {
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}, {"TORCHELASTIC_RUN_ID", "17"}},
       "TORCHELASTIC_RESTART_COUNT",
       {{"TORCHELASTIC_RUN_ID", "18"}, {"SLURM_JOB_ID", "5"}}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}, {"TORCHELASTIC_RUN_ID", "none"}},
       "TORCHELASTIC_RESTART_COUNT",
       {{"MASTER_PORT", "2"}, {"SLURM_JOB_ID", "5"}}},
      {{{"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_JOB_ID", "1"},
        {"SLURM_STEP_ID", "0"}},
       "SLURM_RESTART_COUNT",
       {{"SLURM_JOB_ID", "2"}, {"SLURM_STEP_ID", "1"}}},
      {{{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"PMIX_NAMESPACE", "a"}},
       "",
       {{"PMIX_NAMESPACE", "b"}, {"SLURM_JOB_ID", "5"}}},
      {{{"PMI_RANK", "0"},
        {"PMI_SIZE", "2"},
        {"MPI_LOCALRANKID", "0"},
        {"MPI_LOCALNRANKS", "2"},
        {"MASTER_PORT", "1"}},
       "",
       {{"MASTER_PORT", "2"}, {"SLURM_JOB_ID", "5"}}},
      {{{"PALS_RANKID", "0"},
        {"PMI_SIZE", "2"},
        {"PALS_LOCAL_RANKID", "0"},
        {"PALS_LOCAL_SIZE", "2"},
        {"PALS_APID", "a"}},
       "",
       {{"PALS_APID", "b"}, {"SLURM_JOB_ID", "5"}}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}},
       "",
       {{"MASTER_PORT", "2"}, {"ELIXIR_JOB", "mine"}, {"SLURM_JOB_ID", "5"}}}};
  const auto launch_with = [&](const Starter& starter, auto more) {
    SetUp();
    for (const auto& [name, value] : starter.variables) set(name, value);
    more();
    return read_launch_environment()->launch;
  };
  for (const Starter& starter : starters) {
    const std::string launch = launch_with(starter, [] {});
    SCOPED_TRACE(launch);
    EXPECT_FALSE(launch.empty());
    const char* const rank = starter.variables.front().first;
    EXPECT_EQ(launch_with(starter, [&] { set(rank, "1"); }), launch) << "another rank";
    if (*starter.restarts != '\0') {
      EXPECT_EQ(launch_with(starter, [&] { set(starter.restarts, "1"); }), launch) << "a restart";
    }
    for (const auto& [name, value] : starter.of_another_launch) {
      EXPECT_NE(launch_with(starter, [&, name = name, value = value] { set(name, value); }), launch)
          << name;
    }
  }
  // torchrun may choose another port for a restart; an id that was given is enough.
  EXPECT_EQ(launch_with(starters[0], [] { set("MASTER_PORT", "2"); }),
            launch_with(starters[0], [] {}));
}

// Whatever other process is alone; the optimizers of this one share an elixird.
TEST_F(LaunchEnvironmentTest, AProcessAloneIsALaunch) {
  const std::string own = read_launch_environment()->launch;
  EXPECT_EQ(read_launch_environment()->launch, own);
  EXPECT_THAT(own, HasSubstr(std::to_string(::getpid())));
}

using Variables = std::vector<std::pair<std::string, std::string>>;

struct StarterCase {
  const char* starter;
  Variables rank;   // of rank 5 of 8, the second of four on its node
  Variables start;  // which start it is; one of them would do
};

const std::vector<StarterCase>& starter_cases() {
  static const auto& cases = *new std::vector<StarterCase>{
      {"openmpi",
       {{"OMPI_COMM_WORLD_RANK", "5"},
        {"OMPI_COMM_WORLD_SIZE", "8"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
       {{"PMIX_NAMESPACE", "prterun-77"}}},
      {"mvapich",
       {{"MV2_COMM_WORLD_RANK", "5"},
        {"MV2_COMM_WORLD_SIZE", "8"},
        {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
        {"MV2_COMM_WORLD_LOCAL_SIZE", "4"}},
       {{"MASTER_PORT", "29500"}}},
      {"pals",
       {{"PALS_RANKID", "5"},
        {"PMI_SIZE", "8"},
        {"PALS_LOCAL_RANKID", "1"},
        {"PALS_LOCAL_SIZE", "4"}},
       {{"PALS_APID", "3f7c"}}},
      {"hydra",
       {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}},
       {{"ELIXIR_JOB", "tuesday"}}},
      {"pmi",
       {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "4"}},
       {{"MASTER_ADDR", "node-a"}}},
  };
  return cases;
}

// A starter that leaves out any variable but the rank's is refused, by the name of that one.
TEST_F(LaunchEnvironmentTest, EachStarterIsReadOrRefusedByName) {
  for (const StarterCase& of : starter_cases()) {
    SCOPED_TRACE(of.starter);
    const auto set_all_but = [&](const Variables& those, const std::string& left_out) {
      for (const auto& [name, value] : those) {
        if (name != left_out) set(name.c_str(), value.c_str());
      }
    };
    SetUp();
    set_all_but(of.rank, "");
    set_all_but(of.start, "");
    const Result<LaunchEnvironment> whole = read_launch_environment();
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    EXPECT_EQ(whole->starter, of.starter);
    EXPECT_EQ(whole->rank, 5u);
    EXPECT_EQ(whole->world_size, 8u);
    EXPECT_EQ(whole->local_rank, 1u);
    EXPECT_EQ(whole->local_world_size, 4u);
    for (size_t i = 1; i < of.rank.size(); ++i) {
      SetUp();
      set_all_but(of.rank, of.rank[i].first);
      set_all_but(of.start, "");
      const Result<LaunchEnvironment> part = read_launch_environment();
      ASSERT_FALSE(part.ok()) << of.rank[i].first;
      EXPECT_EQ(part.status().code(), Code::kInvalidArgument);
      EXPECT_THAT(part.status().message(), HasSubstr(of.rank[0].first + "=5"));
    }
  }
}

// Open MPI and PALS give each start a name.
TEST_F(LaunchEnvironmentTest, AStarterThatNamesNoStartIsTold) {
  set("PMI_RANK", "0");
  set("PMI_SIZE", "2");
  set("MPI_LOCALRANKID", "0");
  set("MPI_LOCALNRANKS", "2");
  EXPECT_THAT(read_launch_environment().status().message(),
              AllOf(HasSubstr("PMI_RANK"), HasSubstr("MASTER_PORT"), HasSubstr("ELIXIR_JOB")));
  set("PMI_SIZE", "1");
  set("MPI_LOCALNRANKS", "1");
  EXPECT_EQ(read_launch_environment()->world_size, 1u);
}

TEST_F(LaunchEnvironmentTest, APmixStarterDoesNotSayOfHowMany) {
  set("PMIX_RANK", "1");
  EXPECT_THAT(read_launch_environment().status().message(), HasSubstr("PMIX_RANK=1"));
  set("RANK", "1");
  set("WORLD_SIZE", "2");
  EXPECT_EQ(read_launch_environment()->rank, 1u);
}

// srun sets PMI's variables beside its own; a batch script's own task number is not that of the
// ranks that mpirun starts there.
TEST_F(LaunchEnvironmentTest, SlurmGoesBeforePmiAndBehindWhatIsStartedWithinIt) {
  set("SLURM_PROCID", "1");
  set("SLURM_NTASKS", "2");
  set("SLURM_LOCALID", "1");
  set("SLURM_JOB_ID", "77");
  set("PMI_RANK", "1");
  set("PMI_SIZE", "2");
  EXPECT_EQ(read_launch_environment()->starter, "slurm");
  set("MPI_LOCALRANKID", "2");
  set("MPI_LOCALNRANKS", "4");
  set("PMI_RANK", "2");
  set("PMI_SIZE", "4");
  set("MASTER_PORT", "29500");
  EXPECT_EQ(read_launch_environment()->rank, 2u);
  EXPECT_EQ(read_launch_environment()->world_size, 4u);
}

// As scripts do before init_process_group.
TEST_F(LaunchEnvironmentTest, WhoSetsTheRankByHandIsToSayWhichOfTheNodeItIs) {
  set("RANK", "5");
  set("WORLD_SIZE", "8");
  set("MASTER_ADDR", "node-a");
  EXPECT_THAT(read_launch_environment().status().message(),
              AllOf(HasSubstr("RANK=5"), HasSubstr("LOCAL_RANK and LOCAL_WORLD_SIZE")));
  set("SLURM_PROCID", "5");
  set("SLURM_NTASKS", "8");
  set("SLURM_LOCALID", "1");
  set("SLURM_NODEID", "1");
  set("SLURM_STEP_NUM_NODES", "2");
  set("SLURM_STEP_TASKS_PER_NODE", "4(x2)");
  EXPECT_EQ(read_launch_environment()->local_rank, 1u);
  EXPECT_EQ(read_launch_environment()->local_world_size, 4u);
  set("SLURM_PROCID", "0");  // another one's: the batch script's own
  EXPECT_FALSE(read_launch_environment().ok());
  set("MASTER_ADDR", "localhost");
  EXPECT_TRUE(read_launch_environment()->one_node());
}

TEST_F(LaunchEnvironmentTest, OneNodeMeetsOnLoopback) {
  set("RANK", "0");
  set("WORLD_SIZE", "2");
  EXPECT_EQ(read_launch_environment()->master_address, "127.0.0.1");
  EXPECT_EQ(read_launch_environment()->master_port, 0);
  set("MASTER_ADDR", "node-a");
  set("MASTER_PORT", "29500");
  set("LOCAL_RANK", "0");
  set("LOCAL_WORLD_SIZE", "2");
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(read_launch_environment()->master_address, "node-a");
  EXPECT_EQ(read_launch_environment()->master_port, 29500);
  EXPECT_TRUE(read_launch_environment()->starter_hosts_store);
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  EXPECT_FALSE(read_launch_environment()->starter_hosts_store);
  set("MASTER_PORT", "65536");
  EXPECT_THAT(read_launch_environment().status().message(), HasSubstr("MASTER_PORT='65536'"));
}

TEST_F(LaunchEnvironmentTest, ASlurmStepOnSeveralNodesMeetsOnItsFirst) {
  set("SLURM_PROCID", "4");
  set("SLURM_NTASKS", "5");
  set("SLURM_LOCALID", "0");
  set("SLURM_STEP_NUM_NODES", "3");
  set("SLURM_NODEID", "2");
  EXPECT_THAT(read_launch_environment().status().message(), HasSubstr("--ntasks-per-node"));
  set("SLURM_STEP_TASKS_PER_NODE", "2(x2),1");
  set("SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1");
  EXPECT_EQ(read_launch_environment()->master_address, "10.1.1.1");
  set("SLURM_STEP_NODELIST", "gpu[07-08,12]");
  set("SLURM_JOB_ID", "12345");
  const LaunchEnvironment environment = *read_launch_environment();
  EXPECT_EQ(environment.local_world_size, 1u);
  EXPECT_FALSE(environment.one_node());
  EXPECT_EQ(environment.master_address, "gpu07");
  EXPECT_EQ(environment.master_port, kFirstDerivedPort + 2345);
  set("SLURM_STEP_ID", "1");
  EXPECT_NE(read_launch_environment()->master_port, environment.master_port);
  set("MASTER_ADDR", "gpu08");
  set("MASTER_PORT", "1234");
  EXPECT_EQ(read_launch_environment()->master_address, "gpu08");
  EXPECT_EQ(read_launch_environment()->master_port, 1234);
}

TEST_F(LaunchEnvironmentTest, OpenMpiNeedsAnAddressOnSeveralNodesOnly) {
  set("OMPI_COMM_WORLD_RANK", "1");
  set("OMPI_COMM_WORLD_SIZE", "2");
  set("OMPI_COMM_WORLD_LOCAL_RANK", "0");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  set("PMIX_NAMESPACE", "prterun-node-a-77@1");
  const LaunchEnvironment two_nodes = *read_launch_environment();
  EXPECT_EQ(two_nodes.master_address, "");
  EXPECT_GE(two_nodes.master_port, kFirstDerivedPort);
  EXPECT_LT(two_nodes.master_port, kFirstDerivedPort + kDerivedPorts);
  set("PMIX_NAMESPACE", "prterun-node-a-78@1");
  EXPECT_NE(read_launch_environment()->master_port, two_nodes.master_port);
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  EXPECT_EQ(read_launch_environment()->master_address, "127.0.0.1");
}

TEST(SlurmListsTest, TheFirstHost) {
  EXPECT_EQ(first_slurm_host("a"), "a");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("gpu[07-09,12],login"), "gpu07");
  EXPECT_EQ(first_slurm_host("gpu[3,7-9]"), "gpu3");
  EXPECT_EQ(first_slurm_host("r[1-2]n[05-06].local"), "r1n05.local");
  EXPECT_EQ(first_slurm_host("gpu[07"), "");
  EXPECT_EQ(first_slurm_host(""), "");
}

TEST(SlurmListsTest, TasksOnANode) {
  EXPECT_EQ(slurm_tasks_on_node("4", 0), 4u);
  EXPECT_EQ(slurm_tasks_on_node("4", 1), std::nullopt);
  for (const uint32_t node : {0u, 1u, 2u}) EXPECT_EQ(slurm_tasks_on_node("2(x3),1", node), 2u);
  EXPECT_EQ(slurm_tasks_on_node("2(x3),1", 3), 1u);
  EXPECT_EQ(slurm_tasks_on_node("2(x3),1", 4), std::nullopt);
  for (const char* bad : {"", "x", "2(x", "2(x3", "2,", ","}) {
    EXPECT_EQ(slurm_tasks_on_node(bad, 5), std::nullopt) << bad;
  }
}

TEST_F(LaunchEnvironmentTest, RefusesWhatContradictsItself) {
  set("RANK", "2");
  set("WORLD_SIZE", "2");
  EXPECT_EQ(read_launch_environment().status().code(), Code::kInvalidArgument);
  set("RANK", "x");
  EXPECT_THAT(read_launch_environment().status().message(), HasSubstr("RANK='x'"));
}

// Variables of a starter that has started one rank alone: a batch script without srun, Kubeflow's.
TEST_F(LaunchEnvironmentTest, NamesTheVariablesThatSayThatThereAreOthers) {
  EXPECT_EQ(read_launch_environment()->ranks_said, "");
  using Variables = std::vector<std::pair<const char*, const char*>>;
  const std::vector<std::pair<Variables, const char*>> starters = {
      {{{"RANK", "0"}, {"WORLD_SIZE", "3"}}, "elixir-run or torchrun"},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "3"}, {"SLURM_LOCALID", "0"}}, "srun"},
      {{{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "3"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}},
       "mpirun"},
      {{{"PMI_RANK", "0"},
        {"PMI_SIZE", "3"},
        {"MPI_LOCALRANKID", "0"},
        {"MPI_LOCALNRANKS", "3"},
        {"MASTER_PORT", "1"}},
       "mpiexec"},
  };
  for (const auto& [variables, program] : starters) {
    SetUp();
    for (const auto& [name, value] : variables) set(name, value);
    const Result<LaunchEnvironment> read = read_launch_environment();
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_THAT(read->ranks_said,
                AllOf(HasSubstr(fmt::format("{}=0 and {}=3 in the environment", variables[0].first,
                                            variables[1].first)),
                      HasSubstr("3 ranks"), HasSubstr(fmt::format("with {}, or unset", program))));
    EXPECT_EQ(read->and_why(), "; " + read->ranks_said);
  }
}

}  // namespace
}  // namespace elixir
