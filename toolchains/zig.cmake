# zig's bundled clang and lld, with a pinned glibc.
#
#   EDGEPACK_TRIPLE       GNU triple, e.g. arm-linux-gnueabihf
#   EDGEPACK_GLIBC        highest glibc version that may be needed, e.g. 2.28
#   EDGEPACK_BOARD_FLAGS  list of code generation flags from boards.toml
#   EDGEPACK_ZIG          the zig executable (the `ziglang` package ships one)
set(CMAKE_SYSTEM_NAME Linux)
string(REGEX REPLACE "-.*" "" CMAKE_SYSTEM_PROCESSOR "${EDGEPACK_TRIPLE}")

# try_compile() runs this file again in a project of its own: without this list
# feature checks would look at another CPU than the build does.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES
  EDGEPACK_TRIPLE EDGEPACK_GLIBC EDGEPACK_BOARD_FLAGS EDGEPACK_ZIG)

set(_zig_target "${EDGEPACK_TRIPLE}.${EDGEPACK_GLIBC}")
set(CMAKE_C_COMPILER "${EDGEPACK_ZIG}" cc)
set(CMAKE_CXX_COMPILER "${EDGEPACK_ZIG}" c++)
set(CMAKE_C_COMPILER_TARGET "${_zig_target}")
set(CMAKE_CXX_COMPILER_TARGET "${_zig_target}")
set(CMAKE_ASM_COMPILER_TARGET "${_zig_target}")

# CMake wants archivers as one path each; zig has them as subcommands.
foreach(_tool ar ranlib)
  set(_wrapper "${CMAKE_BINARY_DIR}/CMakeFiles/zig-${_tool}")
  if(NOT EXISTS "${_wrapper}")
    file(WRITE "${_wrapper}" "#!/bin/sh\nexec '${EDGEPACK_ZIG}' ${_tool} \"$@\"\n")
    file(CHMOD "${_wrapper}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endif()
  string(TOUPPER ${_tool} _upper)
  set(CMAKE_${_upper} "${_wrapper}" CACHE FILEPATH "zig ${_tool}" FORCE)
endforeach()

# add_compile_options keeps both these and a user's CMAKE_CXX_FLAGS.
# zig adds debug information unless told not to.
add_compile_options(${EDGEPACK_BOARD_FLAGS} -g0)
add_link_options(${EDGEPACK_BOARD_FLAGS} -g0)

# Checks compile and do not link: a link of C++ would build a libc++ for them alone.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
