// Rows of a store as they were at one moment, copied out while the store goes on changing.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"

namespace sok {

// The options of a capture. The state of a store at a capture may have a number, which the caller
// draws.
//
// Two readers of changes, such as checkpoints and publications, number states apart from each
// other: each gets all changes since its own last state, whatever the other has captured.
struct CaptureOptions {
  static constexpr int kReaders = 2;

  // A number for the state that is captured, by which a later capture may name it in `since`. 0: no
  // later capture will.
  uint64_t mark = 0;
  // Only rows that were made or changed, and keys that went, since the state of this number, which
  // must be the reader's last one that has a number; 0: all rows.
  uint64_t since = 0;
  int reader = 0;  // whose numbers these are
};

// The columns into which a capture writes rows, with room for as many rows as the call says.
struct CapturedColumns {
  Key* keys;
  uint32_t* update_nums;
  uint32_t* update_times;
  float* embeddings;  // (room, dim)
  float* slots;       // (room, slot_floats)
};

// A store has at most one at a time that is not released. A call that changes a row that the
// capture has not copied out yet keeps a copy for it first; such copies count in the CaptureBudget.
//
// One thread at a time may use it. It must not outlive its store.
class RowCapture {
 public:
  RowCapture() = default;
  RowCapture(const RowCapture&) = delete;
  RowCapture& operator=(const RowCapture&) = delete;
  // Ends the capture. Unless Keep was called, the store forgets the number of the state, and a
  // later capture that starts from the state before has all changes since that one.
  virtual ~RowCapture() = default;

  // Returns the number of rows in the capture.
  virtual uint64_t rows() const = 0;
  // Returns the number of rows in the store at the moment of the capture.
  virtual uint64_t size() const = 0;
  // Distinct keys that went since the state that the capture starts from; some of them may have
  // come again, and have a row.
  virtual const std::vector<Key>& removed() const = 0;

  // Copies rows that were not copied out before, in no order. Returns how many; less than `room` if
  // these were the last. kResourceExhausted: memory for copies has ended, and some rows are lost to
  // the capture.
  virtual Result<size_t> Next(const CapturedColumns& to, size_t room) = 0;
  // Does the same, but only for rows of which copies are kept. Less than `room` means that no
  // copies are left now.
  virtual Result<size_t> NextKept(const CapturedColumns& to, size_t room) = 0;
  // Returns the bytes of the copies that are kept.
  virtual uint64_t kept_bytes() const = 0;

  // Ends the copying: no more copies are kept, and another capture may begin.
  virtual void Release() = 0;
  // Confirms that the captured rows are safe: the store remembers the number of its state.
  virtual void Keep() = 0;
};

// The memory of copies that all captures of the process keep. Thread-safe.
class CaptureBudget {
 public:
  static CaptureBudget& OfProcess();

  // Calls that change rows wait while so many bytes are kept.
  void set_limit(uint64_t bytes);
  uint64_t limit() const;
  uint64_t used() const;
  uint64_t peak() const;          // the greatest `used` since the limit was set
  double waited_seconds() const;  // how long threads have waited, since the limit was set
  void Add(uint64_t bytes);
  void Remove(uint64_t bytes);
  // Waits until less than the limit is used, or `ended` returns true.
  void WaitForRoom(const std::function<bool()>& ended);
  // Wakes the waiting calls, which ask `ended` again.
  void Wake();

 private:
  mutable std::mutex mu_;
  std::condition_variable changed_;
  uint64_t limit_ = uint64_t{256} << 20;
  uint64_t used_ = 0;
  uint64_t peak_ = 0;
  double waited_seconds_ = 0;
};

}  // namespace sok
