"""All that compilers of C and C++ build: toolchains, sources, OpenCV, the app, the device tool."""
