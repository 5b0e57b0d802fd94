// Replaces the headers of the standard library in a program for a GPU, as far as the sources of the
// program use them. NVRTC has no such headers.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

namespace std {

using ::int64_t;
using ::size_t;
using ::uint64_t;

inline float sqrt(float x) { return ::sqrtf(x); }
inline double sqrt(double x) { return ::sqrt(x); }
inline float fabs(float x) { return ::fabsf(x); }
inline double fabs(double x) { return ::fabs(x); }
inline float pow(float x, float y) { return ::powf(x, y); }
inline double pow(double x, double y) { return ::pow(x, y); }
inline double log(double x) { return ::log(x); }
inline double fma(double x, double y, double z) { return ::fma(x, y, z); }
inline double copysign(double x, double y) { return ::copysign(x, y); }
inline void* memcpy(void* to, const void* from, size_t bytes) { return ::memcpy(to, from, bytes); }

// Declares functions that only the host calls: NVRTC parses the calls and generates no code.
template <typename T>
class vector {
 public:
  vector();
  vector(initializer_list<T> items);
  T& back();
  T& operator[](size_t i);
  const T* begin() const;
  const T* end() const;
  void insert(const T* place, const T& item);
};

template <typename...>
using void_t = void;
struct false_type {
  static constexpr bool value = false;
};
struct true_type {
  static constexpr bool value = true;
};

template <size_t... kIndex>
struct index_sequence {};
template <size_t kCount, size_t... kIndex>
struct make_indexes : make_indexes<kCount - 1, kCount - 1, kIndex...> {};
template <size_t... kIndex>
struct make_indexes<0, kIndex...> {
  using type = index_sequence<kIndex...>;
};
template <size_t kCount>
using make_index_sequence = typename make_indexes<kCount>::type;

}  // namespace std
