# tvm_ffi from the C++ source that the apache-tvm-ffi package ships; only what kernels call, which is
# how they say what failed. Its tables of functions and types, by which languages find each other's, are
# left out: to fill them when a program starts takes more than to read a model's plan.
set(EDGEPACK_TVM_FFI_DIR "" CACHE PATH "folder of the Python package tvm_ffi")
set(EDGEPACK_PYTHON "python3" CACHE STRING "a Python that has it, if the folder is not given")
if(NOT EDGEPACK_TVM_FFI_DIR)
  execute_process(
    COMMAND "${EDGEPACK_PYTHON}" -c
      "import importlib.util as u; print(u.find_spec('tvm_ffi').submodule_search_locations[0])"
    OUTPUT_VARIABLE EDGEPACK_TVM_FFI_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
endif()

set(_src "${EDGEPACK_TVM_FFI_DIR}/src/ffi")
add_library(tvm_ffi STATIC
  ${_src}/backtrace.cc
  ${_src}/custom_allocator.cc
  ${_src}/error.cc
  ${_src}/init_once.cc)
target_include_directories(tvm_ffi SYSTEM PUBLIC
  "${EDGEPACK_TVM_FFI_DIR}/include" "${EDGEPACK_TVM_FFI_DIR}/3rdparty/dlpack/include")
# Its header looks for __MUSL__, which musl never defines, and then for a header that is BSD's. All
# boards are little-endian.
target_compile_definitions(tvm_ffi PUBLIC TVM_FFI_CMAKE_LITTLE_ENDIAN=1 PRIVATE
  TVM_FFI_USE_LIBBACKTRACE=0 TVM_FFI_BACKTRACE_ON_SEGFAULT=0)
target_compile_options(tvm_ffi PRIVATE -w -O1)
set_target_properties(tvm_ffi PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
target_compile_options(tvm_ffi PUBLIC
  "-ffile-prefix-map=${EDGEPACK_TVM_FFI_DIR}=tvm_ffi")
target_link_libraries(tvm_ffi PRIVATE edgepack_options)
if(EDGEPACK_SANITIZE)
  # Nothing that a file or a person says reaches it, and compiling it would take four times as long.
  target_compile_options(tvm_ffi PRIVATE -fno-sanitize=all PUBLIC
    $<$<CXX_COMPILER_ID:Clang>:-fsanitize-ignorelist=${CMAKE_CURRENT_LIST_DIR}/sanitize_ignore.txt>)
endif()
