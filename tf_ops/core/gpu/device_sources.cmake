# Makes a source of the headers that programs for a GPU consist of: see device_sources.h.
# SOK_DEVICE_SOURCES is set to it.
file(GLOB headers RELATIVE "${CMAKE_CURRENT_LIST_DIR}/../.." CONFIGURE_DEPENDS
     "${CMAKE_CURRENT_LIST_DIR}/kernels/*.h" "${CMAKE_CURRENT_LIST_DIR}/kernels/*.cu"
     "${CMAKE_CURRENT_LIST_DIR}/../rules/*/*.h")
list(APPEND headers core/bags/position_arithmetic.h core/base/bfloat16.h core/base/float16.h
                    core/base/hash.h core/base/remainder.h core/base/start_vector.h core/base/unused_bits.h
                    core/rules/parameter.h core/rules/rule.h
                    core/rules/rules.h)
set(text "// Made by device_sources.cmake.\n#include \"core/gpu/device_sources.h\"\n\n")
string(APPEND text "namespace sok::gpu {\n\nconst std::vector<Header>& DeviceHeaders() {\n")
string(APPEND text "  static const std::vector<Header> headers{\n")
foreach(header IN LISTS headers)
  set(path "${CMAKE_CURRENT_LIST_DIR}/../../${header}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
  file(READ "${path}" content)
  string(APPEND text "{\"${header}\", R\"sok_text(${content})sok_text\"},\n")
endforeach()
# NVRTC brings no headers of the standard library, and the host's part of a rule needs no code.
foreach(header algorithm cmath cstddef cstdint cstring type_traits utility vector)
  string(APPEND text "{\"${header}\", \"#include \\\"core/gpu/kernels/standard.h\\\"\\n\"},\n")
endforeach()
foreach(header core/rules/parameters.h core/rules/row_optimizer.h)
  string(APPEND text "{\"${header}\", \"#include \\\"core/gpu/kernels/host_part.h\\\"\\n\"},\n")
endforeach()
string(APPEND text "};\n  return headers;\n}\n\n}  // namespace sok::gpu\n")
set(SOK_DEVICE_SOURCES "${CMAKE_CURRENT_BINARY_DIR}/device_sources.cc")
file(CONFIGURE OUTPUT "${SOK_DEVICE_SOURCES}" CONTENT "${text}" @ONLY)
