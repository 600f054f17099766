# libpng and the zlib it needs.
set(_zlib "${EDGEPACK_OPENCV_SOURCE}/3rdparty/zlib")
set(_png "${EDGEPACK_OPENCV_SOURCE}/3rdparty/libpng")
configure_file("${_zlib}/zconf.h.in" "${_generated}/zconf.h" COPYONLY)

set(_zlib_names
  adler32 compress crc32 deflate inffast inflate inftrees trees uncompr zutil)
list(TRANSFORM _zlib_names REPLACE "(.+)" "${_zlib}/\\1.c" OUTPUT_VARIABLE _zlib_sources)
set(_png_names
  png pngerror pngget pngmem pngpread pngread pngrio pngrtran pngrutil pngset pngtrans pngwio
  pngwrite pngwtran pngwutil)
# libpng's vector code for 32-bit ARM is assembly only.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  list(APPEND _png_names arm/arm_init arm/filter_neon_intrinsics arm/palette_neon_intrinsics)
elseif(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^arm")
  list(APPEND _png_names intel/intel_init intel/filter_sse2_intrinsics)
endif()
list(TRANSFORM _png_names REPLACE "(.+)" "${_png}/\\1.c" OUTPUT_VARIABLE _png_sources)

add_library(png OBJECT ${_zlib_sources} ${_png_sources})
set(_png_include "${_png}" "${_zlib}" "${_generated}")
target_include_directories(png PRIVATE ${_png_include})
target_compile_definitions(png PRIVATE
  HAVE_UNISTD_H=1
  HAVE_STDARG_H=1
  PNG_ARM_NEON_OPT=$<IF:$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},aarch64>,2,0>
  PNG_INTEL_SSE_OPT=$<IF:$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>,1,0>)
