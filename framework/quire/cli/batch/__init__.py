"""Files of requests, in the format of OpenAI's Batch API, for `quire run-batch`.

batch_lines      one request and one result, as lines of JSON
batch_input      the file of requests, read as a stream
custom_ids       ids that two requests have
result_files     files of results: opened, locked, replaced
written_results  results that a file has already
batch_output     the file of results, and which requests it has
batch_run        the requests, as calls of the server's application
batch_progress   what is shown meanwhile and at the end
batch_engine     the engine behind the application, and signals
"""
