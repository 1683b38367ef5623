# Run by the test install_consumer; the variables come from CMakeLists.txt beside this file.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${work}/prefix ${work}/consumer)
run(${CMAKE_COMMAND} --install ${build} --prefix ${work}/prefix)
run(${CMAKE_COMMAND} -S ${source} -B ${work}/consumer -G ${generator}
  -D CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_COMPILER=${compiler} -D "CMAKE_CXX_FLAGS=${flags}"
  -D CMAKE_PREFIX_PATH=${work}/prefix)
run(${CMAKE_COMMAND} --build ${work}/consumer)
run(${CMAKE_COMMAND} -E env FORESAIL_DATA= ${work}/consumer/consumer)
run(${work}/prefix/bin/foresail --version)
