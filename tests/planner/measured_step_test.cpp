// What a training says of the rates that it was planned with.

#include "planner/report/measured_step.h"

#include "planner/report/plan_text.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

using testing::some_probe;

Plan planned() {
  Plan plan;
  plan.predicted.step_s = 1;
  plan.predicted.compute_s = 0.8;
  plan.predicted.h2d_s = 0.5;
  plan.predicted.d2h_s = 0.04;
  plan.predicted.update_s = 0.6;
  return plan;
}

std::vector<Leg> legs_of(const std::vector<LegOff>& off) {
  std::vector<Leg> legs;
  for (const LegOff& one : off) legs.push_back(one.leg);
  return legs;
}

TEST(MeasuredStep, LegsThatWereOffByMoreThanFifteenPercent) {
  const Plan plan = planned();
  MeasuredStep measured{.step_s = 1, .legs = {.compute_s = 0.9, .h2d_s = 0.5, .update_s = 0.6}};
  EXPECT_THAT(legs_off(plan, measured), IsEmpty());
  measured.legs.compute_s = 0.8 * 1.16;
  measured.legs.update_s = 0.6 / 1.16;
  const std::vector<LegOff> off = legs_off(plan, measured);
  EXPECT_THAT(legs_of(off), ElementsAre(Leg::kCompute, Leg::kUpdate));
  EXPECT_NEAR(off[0].ratio, 1.16, 1e-9);
  EXPECT_NEAR(off[1].ratio, 1 / 1.16, 1e-9);
}

TEST(MeasuredStep, ALegThatTakesLittleOfTheStepSaysNothing) {
  Plan plan = planned();
  MeasuredStep measured{
      .step_s = 1,
      .legs = {.compute_s = 0.8, .h2d_s = 0.5, .d2h_s = 0.4, .g2g_s = 0.4, .update_s = 0.6}};
  EXPECT_THAT(legs_off(plan, measured), IsEmpty());  // 0.04 planned; collectives are not measured
  plan.predicted.d2h_s = 0.06;
  EXPECT_THAT(legs_of(legs_off(plan, measured)), ElementsAre(Leg::kD2h));
  measured.legs.d2h_s = 0.02;  // little measured
  EXPECT_THAT(legs_off(plan, measured), IsEmpty());
  measured.legs.update_s = 0;  // not known
  EXPECT_THAT(legs_off(plan, measured), IsEmpty());
}

TEST(MeasuredStep, OnlySteadyLegsSaySomethingOfARate) {
  const MeasuredStep measured{.steady = {Leg::kH2d, Leg::kUpdate}};
  const std::vector<LegOff> off = {{Leg::kCompute, 2}, {Leg::kUpdate, 2}};
  EXPECT_THAT(legs_of(steady_of(off, measured)), ElementsAre(Leg::kUpdate));
  EXPECT_THAT(steady_of(off, MeasuredStep{}), IsEmpty());
}

TEST(MeasuredStep, TheLineNamesEachRateThatWasOff) {
  const MeasuredStep measured{.step_s = 1.3,
                              .legs = {.compute_s = 0.8, .h2d_s = 1, .update_s = 0.75}};
  EXPECT_THAT(measured_text(planned(), measured),
              AllOf(HasSubstr("; h2d took 2.00 x its predicted time (h2d_gb_s)"),
                    HasSubstr("; update took 1.25 x its predicted time (cpu_update_gparam_s)"),
                    Not(HasSubstr("compute took"))));
}

TEST(MeasuredStep, CorrectionsChangeTheRatesOfTheirLegsAlone) {
  Machine machine = some_probe().machine;
  machine.by_gpus = {{.gpus = 1, .h2d_gb_s = 10, .cpu_update_gparam_s = 3}};
  machine.gpu_memory_gb_s = 1000;
  machine.gpu_launch_us = 5;
  machine.gpu_attention_tflops = {{64, 100, 80}};
  machine.cpu_update_beside_copies_gparam_s = 2;
  const Machine compute = corrected(machine, {{Leg::kCompute, 2}});
  EXPECT_EQ(compute.gpu_tflops, machine.gpu_tflops / 2);
  EXPECT_EQ(compute.gpu_memory_gb_s, 500);
  EXPECT_EQ(compute.gpu_launch_us, 10);
  EXPECT_EQ(compute.gpu_attention_tflops[0].backward_tflops, 40);
  EXPECT_EQ(compute.h2d_gb_s, machine.h2d_gb_s);
  EXPECT_EQ(compute.joint_gb_s, machine.joint_gb_s);
  EXPECT_EQ(compute.cpu_update_gparam_s, machine.cpu_update_gparam_s);

  const Machine link = corrected(machine, {{Leg::kH2d, 0.5}, {Leg::kD2h, 1.25}});
  EXPECT_EQ(link.h2d_gb_s, 2 * machine.h2d_gb_s);
  EXPECT_EQ(link.d2h_gb_s, machine.d2h_gb_s / 1.25);
  EXPECT_EQ(link.joint_gb_s, 2 * machine.joint_gb_s);  // by the direction that was off more
  EXPECT_EQ(link.by_gpus[0].h2d_gb_s, 20);
  EXPECT_EQ(link.gpu_tflops, machine.gpu_tflops);

  const Machine update = corrected(machine, {{Leg::kUpdate, 1.25}});
  EXPECT_EQ(update.cpu_update_gparam_s, machine.cpu_update_gparam_s / 1.25);
  EXPECT_EQ(update.cpu_update_beside_copies_gparam_s, 1.6);
  EXPECT_EQ(update.cpu_update_gparam_s_by_trainers, (std::vector<double>{2.4, 2}));
  EXPECT_EQ(update.by_gpus[0].cpu_update_gparam_s, 2.4);
  EXPECT_EQ(update.dram_gb_s, machine.dram_gb_s);
}

TEST(MeasuredStep, NoCorrectionIsMoreThanFivefold) {
  const Machine machine = some_probe().machine;
  EXPECT_EQ(corrected(machine, {{Leg::kH2d, 100}}).h2d_gb_s, machine.h2d_gb_s / 5);
  EXPECT_EQ(corrected(machine, {{Leg::kH2d, 0.01}}).h2d_gb_s, machine.h2d_gb_s * 5);
  EXPECT_TRUE(check_machine(corrected(machine, {{Leg::kCompute, 100}})).ok());
}

}  // namespace
}  // namespace elixir::planner
