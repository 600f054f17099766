# Flags of the app alone; the common ones are in common/cmake/flags.cmake.

target_compile_options(edgepack_options INTERFACE
  # A product and a sum stay two roundings: tensors and Pillow's weights are then equal everywhere.
  -ffp-contract=off
  # No folder of the building machine gets into the program.
  "-ffile-prefix-map=${OpenCV_INSTALL_PATH}=opencv")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^arm")
  # g++ notes on every std::pair that the ABI changed in GCC 7.
  target_compile_options(edgepack_options INTERFACE -Wno-psabi)
endif()

# The program brings its C++ library: a board has libc and the kernel. zig links its own statically
# without being asked.
add_library(edgepack_static_runtime INTERFACE)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT EDGEPACK_SANITIZE)
  target_link_options(edgepack_static_runtime INTERFACE -static-libstdc++ -static-libgcc)
endif()

# A model library takes tvm_ffi's C functions from the program. zig's linker knows no list of symbols:
# there everything that is not hidden is exported, which is little else.
function(edgepack_export_tvm_ffi target)
  if(DEFINED EDGEPACK_ZIG)
    set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
  else()
    set(list "${PROJECT_SOURCE_DIR}/cmake/exports.txt")
    target_link_options(${target} PRIVATE "-Wl,--dynamic-list=${list}")
    set_target_properties(${target} PROPERTIES LINK_DEPENDS "${list}")
  endif()
endfunction()
