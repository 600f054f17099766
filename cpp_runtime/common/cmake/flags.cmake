# What both programs are compiled with. edgepack_options is for everything, third-party code too;
# edgepack_warnings for our own code.
option(EDGEPACK_WERROR "warnings in our own code are errors" OFF)
set(EDGEPACK_SANITIZE OFF CACHE STRING
  "sanitizers: OFF, ON for those of addresses and undefined behaviour, or thread")
option(EDGEPACK_FUZZ "build the libFuzzer targets (needs clang)" OFF)
option(EDGEPACK_TESTS "build the tests (needs doctest)" OFF)
set(EDGEPACK_THIRD_PARTY "" CACHE PATH
  "folder of third-party sources, from edgepack.native.device_tool.fetch_sources()")

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH EDGEPACK_COMMON)
cmake_path(GET EDGEPACK_COMMON PARENT_PATH _root)

# edgepack_unity(TARGET): its sources are compiled as a few large ones, since headers take most of a
# compiler's time. The `host` presets compile each file by itself: there one that forgets to include
# what it uses fails.
option(EDGEPACK_UNITY "compile our own sources as a few large ones" ON)
function(edgepack_unity target)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${EDGEPACK_UNITY} UNITY_BUILD_BATCH_SIZE 18)
endfunction()

add_library(edgepack_options INTERFACE)
target_compile_options(edgepack_options INTERFACE
  -ffunction-sections -fdata-sections
  # No folder of the building machine gets into the program.
  "-ffile-prefix-map=${_root}=edgepack"
  "-ffile-prefix-map=${EDGEPACK_THIRD_PARTY}=third-party")
target_link_options(edgepack_options INTERFACE -Wl,--gc-sections)
if(EDGEPACK_FUZZ)
  set(EDGEPACK_SANITIZE ON)
  # Counters of edges, in the third-party code as well.
  target_compile_options(edgepack_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(EDGEPACK_SANITIZE)
  set(_sanitizers address,undefined)
  if(EDGEPACK_SANITIZE STREQUAL "thread")
    set(_sanitizers thread)
    # g++ says of each fence that the sanitizer does not see it: between two atomic variables.
    target_compile_options(edgepack_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
  # Names and lines, which reports need; all of what a debugger wants takes a tenth more time.
  target_compile_options(edgepack_options INTERFACE
    -fsanitize=${_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(edgepack_options INTERFACE -fsanitize=${_sanitizers})
endif()
include("${CMAKE_CURRENT_LIST_DIR}/hardening.cmake")
target_compile_options(edgepack_options INTERFACE ${EDGEPACK_HARDEN_COMPILE})
target_link_options(edgepack_options INTERFACE ${EDGEPACK_HARDEN_LINK})

add_library(edgepack_warnings INTERFACE)
target_compile_options(edgepack_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Woverloaded-virtual
  -Wcast-align -Wformat=2
  $<$<BOOL:${EDGEPACK_WERROR}>:-Werror>)
