// The code that both kinds of admission share: locks, saving and loading, chunk by chunk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/policies/admission.h"

namespace sok {

// Returns the count of a key that stood at `before` after the key was seen `times` more, at most
// `most`.
inline uint32_t SeenAfter(uint32_t before, int64_t times, uint32_t most) {
  return before + static_cast<uint32_t>(std::clamp<int64_t>(times, 0, most - before));
}

class ChunkedAdmission : public Admission {
 public:
  AdmissionConfig config() const final { return config_; }
  uint32_t chunks() const final { return static_cast<uint32_t>(chunks_.size()); }
  std::vector<uint32_t> ChangedChunks() final;
  Result<std::string> Dump(uint32_t chunk) const final;
  void MarkSaved() final;
  Status Load(uint32_t chunk, std::string_view bytes) final;
  std::vector<uint32_t> UsedChunks() const final;
  Status CheckChunks(const AdmissionChunks& chunks) const final;
  Status Restore(const AdmissionChunks& chunks) final;

 protected:
  // `settings` are the values of the config that the kind reads. A saved chunk belongs to the same
  // config if kind and settings are equal.
  ChunkedAdmission(const AdmissionConfig& config, std::initializer_list<uint64_t> settings,
                   uint32_t chunks);

  // Guards the counters of the chunk.
  std::mutex& mutex(uint32_t chunk) const { return chunks_[chunk].mu; }
  // The caller holds the chunk's mutex.
  void MarkChanged(uint32_t chunk) { chunks_[chunk].changed = chunks_[chunk].used = true; }
  uint64_t chunks_bytes() const { return chunks_.size() * sizeof(Chunk); }

 private:
  // Called with the chunk's mutex held.
  virtual std::string Payload(uint32_t chunk) const = 0;
  // Sets a chunk to the bytes that Payload has returned. After an error nothing has changed.
  virtual Status LoadPayload(uint32_t chunk, std::string_view payload) = 0;
  // Returns the errors of LoadPayload. Called without the mutex.
  virtual Status CheckPayload(uint32_t chunk, std::string_view payload) const = 0;
  // Makes the chunk empty. Called with the chunk's mutex held.
  virtual void ClearChunk(uint32_t chunk) = 0;

  // A cache line each, so that threads with different chunks do not meet.
  struct alignas(64) Chunk {
    mutable std::mutex mu;
    bool changed = false;  // since the last ChangedChunks
    bool in_save = false;  // listed by ChangedChunks, and not confirmed as stored yet
    bool used = false;     // not as it was made
  };

  Status CheckNumber(uint32_t chunk) const;
  // Returns the payload in the bytes that Dump has returned for the chunk.
  Result<std::string_view> PayloadOf(uint32_t chunk, std::string_view bytes) const;

  const AdmissionConfig config_;
  const uint64_t fingerprint_;
  std::vector<Chunk> chunks_;
};

}  // namespace sok
