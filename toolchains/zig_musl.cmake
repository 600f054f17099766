# As zig.cmake, for programs that are linked statically with musl.
#
#   EDGEPACK_TRIPLE  e.g. arm-linux-musleabihf
set(EDGEPACK_GLIBC "none")
include("${CMAKE_CURRENT_LIST_DIR}/zig.cmake")
foreach(_language C CXX ASM)
  set(CMAKE_${_language}_COMPILER_TARGET "${EDGEPACK_TRIPLE}")
endforeach()
