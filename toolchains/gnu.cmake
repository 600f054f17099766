# GCC as packaged by Debian and Ubuntu: g++-arm-linux-gnueabihf, g++-aarch64-linux-gnu.
#
#   EDGEPACK_TRIPLE       GNU triple, e.g. arm-linux-gnueabihf; empty for this machine
#   EDGEPACK_BOARD_FLAGS  list of code generation flags from boards.toml
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES EDGEPACK_TRIPLE EDGEPACK_BOARD_FLAGS)

if(EDGEPACK_TRIPLE)
  set(CMAKE_SYSTEM_NAME Linux)
  string(REGEX REPLACE "-.*" "" CMAKE_SYSTEM_PROCESSOR "${EDGEPACK_TRIPLE}")
  set(CMAKE_C_COMPILER "${EDGEPACK_TRIPLE}-gcc")
  set(CMAKE_CXX_COMPILER "${EDGEPACK_TRIPLE}-g++")
  set(CMAKE_FIND_ROOT_PATH "/usr/${EDGEPACK_TRIPLE}")
  set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
endif()

# add_compile_options keeps both these and a user's CMAKE_CXX_FLAGS.
add_compile_options(${EDGEPACK_BOARD_FLAGS})
