#include "core/transport/two_level_exchange.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

namespace sok {

TEST_CASE("memory of an exchange that has ended serves the next ones that fit into it") {
  SpareMemory spare;
  SpareMemory::Block first = spare.Take(1000);
  const char* const place = first.data.get();
  spare.Give(std::move(first));
  const SpareMemory::Block larger = spare.Take(5000);
  CHECK(larger.data.get() != place);
  CHECK(larger.bytes >= 5000);
  const SpareMemory::Block second = spare.Take(1001);  // a few rows more
  CHECK(second.data.get() == place);
  CHECK(spare.Take(1000).data.get() != place);
}

TEST_CASE("little memory is kept, and that of the largest exchanges") {
  SpareMemory spare;
  std::vector<SpareMemory::Block> blocks;
  for (size_t i = 1; i <= 10; ++i) blocks.push_back(spare.Take(i * 1000));
  for (SpareMemory::Block& block : blocks) spare.Give(std::move(block));
  spare.Give(spare.Take(size_t{1} << 30));
  std::vector<size_t> kept;
  for (int i = 0; i < 5; ++i) kept.push_back(spare.Take(1).bytes);
  CHECK(kept == std::vector<size_t>{7875, 9000, 10125, 11250, 1});
}

}  // namespace sok
