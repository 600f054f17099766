# doctest, and a ctest test per source file, so that a failure says where.
find_path(DOCTEST_INCLUDE_DIR doctest/doctest.h REQUIRED
  # A header without any code of an architecture: the building machine's will do.
  PATHS /usr/include NO_CMAKE_FIND_ROOT_PATH)
# <doctest/doctest.h> from its own folder: /usr/include as a whole would shadow the sysroot's.
set(_include "${CMAKE_BINARY_DIR}/doctest")
file(MAKE_DIRECTORY "${_include}")
file(CREATE_LINK "${DOCTEST_INCLUDE_DIR}/doctest" "${_include}/doctest" SYMBOLIC)
add_library(doctest INTERFACE)
target_include_directories(doctest SYSTEM INTERFACE "${_include}")
# Its macros use __COUNTER__, which clang calls an extension. (To be linked after the warnings.)
target_compile_options(doctest INTERFACE -Wno-pedantic)

add_library(test_support STATIC
  "${EDGEPACK_COMMON}/tests/main.cc"
  "${EDGEPACK_COMMON}/tests/support.cc")
target_link_libraries(test_support PRIVATE edgepack_warnings PUBLIC edgepack_common doctest)

set(_scratch "${CMAKE_BINARY_DIR}/scratch")
add_test(NAME clean COMMAND "${CMAKE_COMMAND}" -E rm -rf "${_scratch}")
add_test(NAME prepare COMMAND "${CMAKE_COMMAND}" -E make_directory "${_scratch}")
set_tests_properties(clean PROPERTIES FIXTURES_CLEANUP scratch)
set_tests_properties(prepare PROPERTIES FIXTURES_SETUP scratch)

# edgepack_link_as_programs(TARGET): as edgepack-run and edgepack-device are, for otherwise zig makes
# a C library and a C++ library for the tests alone (two CPU minutes).
function(edgepack_link_as_programs target)
  if(DEFINED EDGEPACK_ZIG)
    target_link_options(${target} PRIVATE -O2 -s)
  endif()
endfunction()

# edgepack_add_tests(TARGET SOURCE...): a program of test cases, and its tests.
function(edgepack_add_tests target)
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE edgepack_warnings test_support)
  edgepack_unity(${target})
  edgepack_link_as_programs(${target})
  foreach(_source IN LISTS ARGN)
    cmake_path(GET _source STEM _name)
    if(_name MATCHES "^test_")
      add_test(NAME ${_name} COMMAND ${target} "--source-file=*${_name}.cc")
      set_tests_properties(${_name} PROPERTIES
        ENVIRONMENT "TMPDIR=${CMAKE_BINARY_DIR}/scratch" FIXTURES_REQUIRED scratch)
    endif()
  endforeach()
endfunction()
