CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('acf3f17fdcc7');
CREATE TABLE experiments (
	experiment_id INTEGER NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	artifact_location VARCHAR(256), 
	lifecycle_stage VARCHAR(32), creation_time BIGINT, last_update_time BIGINT, 
	CONSTRAINT experiment_pk PRIMARY KEY (experiment_id), 
	CONSTRAINT experiments_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	UNIQUE (name)
);
INSERT INTO "experiments" VALUES(0,'Default','somewhere/mlruns/0','active',1795762313748,1795762313748);
INSERT INTO "experiments" VALUES(1,'example','somewhere/somewhere','active',1795762313757,1795762313757);
CREATE TABLE "latest_metrics" (
	"key" VARCHAR(250) NOT NULL, 
	value FLOAT NOT NULL, 
	timestamp BIGINT, 
	step BIGINT NOT NULL, 
	is_nan BOOLEAN NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT latest_metric_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), 
	CHECK (is_nan IN (0, 1))
);
INSERT INTO "latest_metrics" VALUES('loss',1.5,1795762313971,30,0,'a46a7952a83a45d198a9f138deeb5149');
INSERT INTO "latest_metrics" VALUES('val/accuracy',0.25,1795762313994,20,0,'a46a7952a83a45d198a9f138deeb5149');
INSERT INTO "latest_metrics" VALUES('loss',2.0,1795762314185,30,0,'7d8efe7be0cb4c988d1e799d93b731e7');
INSERT INTO "latest_metrics" VALUES('val/accuracy',0.5,1795762314213,20,0,'7d8efe7be0cb4c988d1e799d93b731e7');
INSERT INTO "latest_metrics" VALUES('loss',1.75,1795762314365,30,0,'f4e3faa3eec3481d913e271b76e1c405');
INSERT INTO "latest_metrics" VALUES('val/accuracy',0.25,1795762314381,20,0,'f4e3faa3eec3481d913e271b76e1c405');
INSERT INTO "latest_metrics" VALUES('loss',0.0,1795762314493,30,1,'9b2704cd48104294bfb3f57fec3549b7');
INSERT INTO "latest_metrics" VALUES('val/accuracy',0.5,1795762314506,20,0,'9b2704cd48104294bfb3f57fec3549b7');
INSERT INTO "latest_metrics" VALUES('loss',9.0,1795762314589,0,0,'1cf601d3165b46a2a1117f2f47c9a990');
INSERT INTO "latest_metrics" VALUES('loss',-1.79769313486231562234e+308,1795762314610,0,0,'c44b5f76050447c58a448e4dde6a6091');
CREATE TABLE "metrics" (
	"key" VARCHAR(250) NOT NULL, 
	value FLOAT NOT NULL, 
	timestamp BIGINT NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	step BIGINT DEFAULT '0' NOT NULL, 
	is_nan BOOLEAN DEFAULT '0' NOT NULL, 
	CONSTRAINT metric_pk PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), 
	CHECK (is_nan IN (0, 1))
);
INSERT INTO "metrics" VALUES('loss',2.0,1795762313921,'a46a7952a83a45d198a9f138deeb5149',10,0);
INSERT INTO "metrics" VALUES('loss',1.25,1795762313953,'a46a7952a83a45d198a9f138deeb5149',20,0);
INSERT INTO "metrics" VALUES('loss',1.5,1795762313971,'a46a7952a83a45d198a9f138deeb5149',30,0);
INSERT INTO "metrics" VALUES('val/accuracy',0.25,1795762313994,'a46a7952a83a45d198a9f138deeb5149',20,0);
INSERT INTO "metrics" VALUES('loss',2.5,1795762314127,'7d8efe7be0cb4c988d1e799d93b731e7',10,0);
INSERT INTO "metrics" VALUES('loss',1.75,1795762314153,'7d8efe7be0cb4c988d1e799d93b731e7',20,0);
INSERT INTO "metrics" VALUES('loss',2.0,1795762314185,'7d8efe7be0cb4c988d1e799d93b731e7',30,0);
INSERT INTO "metrics" VALUES('val/accuracy',0.5,1795762314213,'7d8efe7be0cb4c988d1e799d93b731e7',20,0);
INSERT INTO "metrics" VALUES('loss',2.25,1795762314317,'f4e3faa3eec3481d913e271b76e1c405',10,0);
INSERT INTO "metrics" VALUES('loss',1.5,1795762314343,'f4e3faa3eec3481d913e271b76e1c405',20,0);
INSERT INTO "metrics" VALUES('loss',1.75,1795762314365,'f4e3faa3eec3481d913e271b76e1c405',30,0);
INSERT INTO "metrics" VALUES('val/accuracy',0.25,1795762314381,'f4e3faa3eec3481d913e271b76e1c405',20,0);
INSERT INTO "metrics" VALUES('loss',2.75,1795762314460,'9b2704cd48104294bfb3f57fec3549b7',10,0);
INSERT INTO "metrics" VALUES('loss',2.0,1795762314477,'9b2704cd48104294bfb3f57fec3549b7',20,0);
INSERT INTO "metrics" VALUES('loss',0.0,1795762314493,'9b2704cd48104294bfb3f57fec3549b7',30,1);
INSERT INTO "metrics" VALUES('val/accuracy',0.5,1795762314506,'9b2704cd48104294bfb3f57fec3549b7',20,0);
INSERT INTO "metrics" VALUES('loss',9.0,1795762314589,'1cf601d3165b46a2a1117f2f47c9a990',0,0);
INSERT INTO "metrics" VALUES('loss',-1.79769313486231562234e+308,1795762314610,'c44b5f76050447c58a448e4dde6a6091',0,0);
CREATE TABLE "params" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(8000) NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT param_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "params" VALUES('arm','base','a46a7952a83a45d198a9f138deeb5149');
INSERT INTO "params" VALUES('seed','0','a46a7952a83a45d198a9f138deeb5149');
INSERT INTO "params" VALUES('optimizer.lr','0.125','a46a7952a83a45d198a9f138deeb5149');
INSERT INTO "params" VALUES('arm','base','7d8efe7be0cb4c988d1e799d93b731e7');
INSERT INTO "params" VALUES('seed','1','7d8efe7be0cb4c988d1e799d93b731e7');
INSERT INTO "params" VALUES('optimizer.lr','0.125','7d8efe7be0cb4c988d1e799d93b731e7');
INSERT INTO "params" VALUES('arm','wide','f4e3faa3eec3481d913e271b76e1c405');
INSERT INTO "params" VALUES('seed','0','f4e3faa3eec3481d913e271b76e1c405');
INSERT INTO "params" VALUES('optimizer.lr','0.25','f4e3faa3eec3481d913e271b76e1c405');
INSERT INTO "params" VALUES('arm','wide','9b2704cd48104294bfb3f57fec3549b7');
INSERT INTO "params" VALUES('seed','1','9b2704cd48104294bfb3f57fec3549b7');
INSERT INTO "params" VALUES('optimizer.lr','0.25','9b2704cd48104294bfb3f57fec3549b7');
CREATE TABLE "runs" (
	run_uuid VARCHAR(32) NOT NULL, 
	name VARCHAR(250), 
	source_type VARCHAR(20), 
	source_name VARCHAR(500), 
	entry_point_name VARCHAR(50), 
	user_id VARCHAR(256), 
	status VARCHAR(9), 
	start_time BIGINT, 
	end_time BIGINT, 
	source_version VARCHAR(50), 
	lifecycle_stage VARCHAR(20), 
	artifact_uri VARCHAR(200), 
	experiment_id INTEGER, deleted_time BIGINT, 
	CONSTRAINT run_pk PRIMARY KEY (run_uuid), 
	CONSTRAINT source_type CHECK (source_type IN ('NOTEBOOK', 'JOB', 'LOCAL', 'UNKNOWN', 'PROJECT')), 
	CONSTRAINT runs_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id), 
	CHECK (status IN ('SCHEDULED', 'FAILED', 'FINISHED', 'RUNNING', 'KILLED'))
);
INSERT INTO "runs" VALUES('a46a7952a83a45d198a9f138deeb5149','base-seed0','UNKNOWN','','','somewhere','FINISHED',1795762313863,1795762314025,'','active','somewhere/somewhere/a46a7952a83a45d198a9f138deeb5149/artifacts',1,NULL);
INSERT INTO "runs" VALUES('7d8efe7be0cb4c988d1e799d93b731e7','base-seed1','UNKNOWN','','','somewhere','FINISHED',1795762314054,1795762314229,'','active','somewhere/somewhere/7d8efe7be0cb4c988d1e799d93b731e7/artifacts',1,NULL);
INSERT INTO "runs" VALUES('f4e3faa3eec3481d913e271b76e1c405','wide-seed0','UNKNOWN','','','somewhere','FINISHED',1795762314257,1795762314397,'','active','somewhere/somewhere/f4e3faa3eec3481d913e271b76e1c405/artifacts',1,NULL);
INSERT INTO "runs" VALUES('9b2704cd48104294bfb3f57fec3549b7','wide-seed1','UNKNOWN','','','somewhere','FINISHED',1795762314418,1795762314561,'','active','somewhere/somewhere/9b2704cd48104294bfb3f57fec3549b7/artifacts',1,NULL);
INSERT INTO "runs" VALUES('1cf601d3165b46a2a1117f2f47c9a990','deleted','UNKNOWN','','','somewhere','FINISHED',1795762314574,1795762314594,'','deleted','somewhere/somewhere/1cf601d3165b46a2a1117f2f47c9a990/artifacts',1,1795762314601);
INSERT INTO "runs" VALUES('c44b5f76050447c58a448e4dde6a6091','unfinished','UNKNOWN','','','unknown','RUNNING',1795762314605,NULL,'','active','somewhere/somewhere/c44b5f76050447c58a448e4dde6a6091/artifacts',1,NULL);
CREATE TABLE "tags" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(5000), 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT tag_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "tags" VALUES('mlflow.user','somewhere','a46a7952a83a45d198a9f138deeb5149');
INSERT INTO "tags" VALUES('purpose','a test','a46a7952a83a45d198a9f138deeb5149');
INSERT INTO "tags" VALUES('mlflow.runName','base-seed0','a46a7952a83a45d198a9f138deeb5149');
INSERT INTO "tags" VALUES('mlflow.user','somewhere','7d8efe7be0cb4c988d1e799d93b731e7');
INSERT INTO "tags" VALUES('purpose','a test','7d8efe7be0cb4c988d1e799d93b731e7');
INSERT INTO "tags" VALUES('mlflow.runName','base-seed1','7d8efe7be0cb4c988d1e799d93b731e7');
INSERT INTO "tags" VALUES('mlflow.user','somewhere','f4e3faa3eec3481d913e271b76e1c405');
INSERT INTO "tags" VALUES('purpose','a test','f4e3faa3eec3481d913e271b76e1c405');
INSERT INTO "tags" VALUES('mlflow.runName','wide-seed0','f4e3faa3eec3481d913e271b76e1c405');
INSERT INTO "tags" VALUES('mlflow.user','somewhere','9b2704cd48104294bfb3f57fec3549b7');
INSERT INTO "tags" VALUES('purpose','a test','9b2704cd48104294bfb3f57fec3549b7');
INSERT INTO "tags" VALUES('mlflow.runName','wide-seed1','9b2704cd48104294bfb3f57fec3549b7');
INSERT INTO "tags" VALUES('mlflow.user','somewhere','1cf601d3165b46a2a1117f2f47c9a990');
INSERT INTO "tags" VALUES('mlflow.runName','deleted','1cf601d3165b46a2a1117f2f47c9a990');
INSERT INTO "tags" VALUES('mlflow.runName','unfinished','c44b5f76050447c58a448e4dde6a6091');
