#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <edgepack/postprocessor.h>

#include "scores.h"
#include "statistics.h"
#include "support.h"

namespace edgepack::testing {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();
using How = PostprocessSpec::Scores;

const float kInf = std::numeric_limits<float>::infinity();

Comparison CompareFloats(std::vector<float> actual, const std::vector<float>& expected) {
  const TensorInfo info = Info(DType::kFloat32, {static_cast<std::int64_t>(actual.size())});
  return Compare({&info, actual.data()}, expected.data(), 0.1);
}

}  // namespace

TEST_CASE("the best classes") {
  std::vector<float> values = {1, 5, kNan, 5, -3};
  const TensorInfo info = Info(DType::kFloat32, {1, 5});
  const std::vector<Score> top = TopScores({&info, values.data()}, 10, How::kRaw);
  REQUIRE(top.size() == 5);
  CHECK(top[0].index == 1);
  CHECK(top[1].index == 3);
  CHECK(top[2].index == 0);
  CHECK(top[3].score == -3);
  CHECK(top[4].index == 2);
  CHECK(TopScores({&info, values.data()}, 0, How::kRaw).empty());
}

TEST_CASE("softmax") {
  std::vector<float> values = {1000, 1001};  // would overflow without a shift
  const TensorInfo info = Info(DType::kFloat32, {2});
  const std::vector<Score> top = TopScores({&info, values.data()}, 2, How::kSoftmax);
  CHECK(top[0].score == doctest::Approx(1 / (1 + std::exp(-1.0))));
  CHECK(top[0].score + top[1].score == doctest::Approx(1));
}

TEST_CASE("vectors of scores") {
  CHECK(IsVector({1000}));
  CHECK(IsVector({1, 1, 10}));
  CHECK(IsVector({1, 10, 1, 1}));
  CHECK(IsVector({1, 1}));
  CHECK_FALSE(IsVector({}));
  CHECK_FALSE(IsVector({2, 10}));
}

TEST_CASE("comparison") {
  CHECK(CompareFloats({1, -10}, {1, -10}).max_abs_error == 0);
  const Comparison close = CompareFloats({1.5F, -10}, {1, -10});
  CHECK(close.max_abs_error == 0.5);
  CHECK(close.max_abs_reference == 10);
  CHECK(close.ok());
  CHECK_FALSE(CompareFloats({3, -10}, {1, -10}).ok());
  CHECK_FALSE(CompareFloats({0.1F, 0}, {0, 0}).ok());
  CHECK(CompareFloats({0, 0}, {0, 0}).ok());
}

TEST_CASE("comparison with numbers that are none") {
  CHECK_FALSE(CompareFloats({kNan, 1, 2}, {1, 1, 1}).ok());
  CHECK(std::isnan(CompareFloats({kNan, 9, 9}, {1, 1, 1}).max_abs_error));
  CHECK_FALSE(CompareFloats({9, kNan, 1}, {1, 1, 1}).ok());
  CHECK_FALSE(CompareFloats({1}, {kNan}).ok());
  CHECK_FALSE(CompareFloats({kInf}, {1}).ok());
  CHECK_FALSE(CompareFloats({1, 1}, {kInf, 1}).ok());
  CHECK(CompareFloats({kInf, kNan, 1}, {kInf, kNan, 1}).ok());
}

TEST_CASE("statistics as numpy's") {
  const Statistics s = Summarise({4, 1, 3, 2});
  CHECK(s.mean == 2.5);
  CHECK(s.std == doctest::Approx(1.118033988749895));
  CHECK(s.min == 1);
  CHECK(s.max == 4);
  CHECK(s.p50 == 2.5);
  CHECK(s.p90 == doctest::Approx(3.7));
  CHECK(s.p99 == doctest::Approx(3.97));
  CHECK(Summarise({7}).p99 == 7);
  CHECK(Summarise({7}).std == 0);
}

}  // namespace edgepack::testing
